"""esth: numerical checks of the theory of evolution-strategy populations (see docs/theory.md)."""

__version__ = "0.1.0"

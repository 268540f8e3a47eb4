"""`python -m proofs [LEMMA ...]`: prove the lemmas step by step, and say of each step what it proves and how.

A LEMMA is a module's name (`fisher_rate`), its number (`L1`) or one of its statements (`L1.3`); by default,
all five are proved.
`--claim NAME=VALUE` puts a wrong constant in: the steps that claim it are run with that value, and must fail.
Exit status: 0 every step is proved, 1 a step failed, 2 bad usage.
"""

import argparse
import importlib
import sys
import time
from fractions import Fraction
from typing import NoReturn

LEMMAS = {
    "L1": "fisher_rate",
    "L2": "population_advantage",
    "L3": "reward_weighting",
    "P4": "center_update",
    "T5": "two_point",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"proofs: {message}", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = _Parser(prog="python -m proofs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lemma", nargs="*", help=f"one of {', '.join(LEMMAS.values())}, or a statement like L1.3")
    parser.add_argument("--claim", metavar="NAME=VALUE", action="append", default=[], help="a constant to put in")
    options = parser.parse_args(arguments)
    chosen = [_lemma(parser, name) for name in options.lemma] or [(module, "") for module in LEMMAS.values()]
    try:
        import sympy

        import proofs.intervals  # noqa: F401
        from proofs.step import select
    except ModuleNotFoundError as error:
        parser.error(f"{error.name} is not installed: pip install 'esth[proofs]'")

    modules = [(importlib.import_module(f"proofs.{name}"), statement) for name, statement in chosen]
    selected = [(module, statement, select(module, statement)) for module, statement in modules]
    for _, statement, found in selected:
        if not found:
            parser.error(f"no step proves a part of {statement}")
    claimed = {name for _, _, found in selected for s in found for name in s.constants}
    constants = {}
    for claim in options.claim:
        name, _, value = claim.partition("=")
        if name not in claimed:
            parser.error(f"no step claims a constant named {name!r}; there are {', '.join(sorted(claimed))}")
        try:
            constants[name] = sympy.Rational(Fraction(value))
        except (ValueError, ZeroDivisionError):
            parser.error(f"{claim!r} is not NAME=VALUE with a rational VALUE, like 1/2 or 0.505")
    return _report(selected, constants)


def _lemma(parser: _Parser, name: str) -> tuple[str, str]:
    """The module that a command-line name means, and the statement number that its steps must start with."""
    if name in LEMMAS.values():
        return name, ""
    number = name.partition(".")[0].upper()
    if number not in LEMMAS:
        choices = ", ".join(f"{module} ({key})" for key, module in LEMMAS.items())
        parser.error(f"unknown lemma {name!r}; there are {choices}")
    return LEMMAS[number], name.upper()


def _report(selected: list, constants: dict) -> int:
    from rich.console import Console
    from rich.markup import escape

    from proofs.step import outcomes

    console = Console(highlight=False)
    start, proved, failed, checks = time.perf_counter(), 0, 0, 0
    for module, statement, found in selected:
        mine = {name: value for name, value in constants.items() if any(name in s.constants for s in found)}
        if constants and not mine:
            continue
        console.print(f"\n[bold]{module.__name__.removeprefix('proofs.')}[/] · {_headline(module.__doc__)}")
        for outcome in outcomes(module, statement, **mine):
            s, ok = outcome.step, outcome.failure is None
            mark = "[green]✓[/]" if ok else "[red]✗[/]"
            console.print(f"{mark} [bold]{s.statement}[/]  {escape(s.title)}", soft_wrap=True)
            console.print(f"    {escape(s.claim)}", soft_wrap=True)
            facts = [s.method, s.scope, _plural(outcome.checks, "check"), f"{outcome.seconds:.2f} s"]
            if s.constants:
                facts.insert(2, "claims " + ", ".join(f"{name} = {c}" for name, c in s.constants.items()))
            console.print(f"    [dim]{escape(' · '.join(facts))}[/]", soft_wrap=True)
            if not ok:
                console.print(f"    [red]{escape(str(outcome.failure))}[/]", soft_wrap=True)
            proved, failed, checks = proved + ok, failed + (not ok), checks + outcome.checks
    verdict = (
        f"[red]{_plural(failed, 'step')} failed[/], {proved} proved" if failed else f"{_plural(proved, 'step')} proved"
    )
    console.print(f"\n{verdict} with {_plural(checks, 'check')} in {time.perf_counter() - start:.1f} s")
    return int(failed > 0)


def _headline(docstring: str | None) -> str:
    return (docstring or "").strip().splitlines()[0].rstrip(".")


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


if __name__ == "__main__":
    raise SystemExit(main())

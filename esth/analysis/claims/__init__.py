"""The paper's claims C1–C14, each with its evidence: what was measured at which scale, and what a rule says of it.

    esth claims                                  # a table
    esth claims --markdown                       # docs/claims.md
    esth claims --markdown --short               # the table of the README

Everything is computed from result files; `statements.py` says what is claimed, `comparisons.py`, `ablations.py` and
`updates.py` hold the rules, `claim.py` how a verdict comes about, `cost.py` what the paper's size would cost.
"""

from esth.analysis.claims.claim import Part, Row, Verdict, judge
from esth.analysis.claims.collect import rows, to_json
from esth.analysis.claims.show import markdown, short, tables
from esth.analysis.claims.statements import CLAIMS

__all__ = ["CLAIMS", "Part", "Row", "Verdict", "judge", "markdown", "rows", "short", "tables", "to_json"]

"""`esth attack`: a search for an instance that breaks a bound.

Every bound of a lemma (`esth/attack/<lemma>.py`) is tried on random instances full of extremes (`extremes`,
`spaces`), then on perturbations of the closest ones (`search`), and the closest of all is judged in decimal
arithmetic from the definitions (`exact`), so that rounding can neither fake a violation nor hide one. A bound that
was falsified on purpose, by `constants`, must be found out.
"""

from esth.attack.report import AttackResult, BoundResult, Outcome, show
from esth.attack.run import attack
from esth.attack.search import bounds_of

__all__ = ["AttackResult", "BoundResult", "Outcome", "attack", "bounds_of", "show"]

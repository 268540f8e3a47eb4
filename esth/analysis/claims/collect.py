"""Every claim at every scale, from a folder of results: `rows`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from esth.analysis.claims import ablations, comparisons, updates
from esth.analysis.claims.claim import Row
from esth.analysis.claims.cost import paper_rows
from esth.analysis.claims.sources import Found, Runs, Study, Training
from esth.analysis.claims.statements import CLAIMS
from esth.errors import InputError


@dataclass(frozen=True)
class Source:
    """A result file, the claims it tells of, and how.

    Attributes:
        path: below the folder of results; with a *, of several files: the first is that of the short table.
        scale, model: that a row has where it is not there.
        claims: by id.
        command: that makes it.
        read: its rows.
    """

    path: str
    scale: str
    model: str
    claims: tuple[str, ...]
    command: str
    read: Callable[[Path, str, str, str], Iterator[Row]]

    def rows(self, results: Path) -> Iterator[Row]:
        """What the file says, or that it was not made; `results` is the folder.

        Raises:
            InputError: a file that is damaged or from another version.
        """
        files = sorted(results.glob(self.path))
        for i, file in enumerate(files):
            name = f"{results.resolve().name}/{file.relative_to(results).as_posix()}"
            for row in self.read(file, name, self.scale, self.model):
                yield row if i == 0 else replace(row, main=False)
        if not files:
            for claim in self.claims:
                yield Row(claim, self.scale, self.model, "", command=self.command, cost="no GPU needed")


def _of_study(study: Study) -> Iterator[Row]:
    yield from _of_training(study)
    for rule in ablations.RULES.values():
        yield from rule(study)


def _study(file: Path, name: str, scale: str, model: str) -> Iterator[Row]:
    yield from _of_study(Study(Found(file, name), scale, model))


def _runs(folder: Path, name: str, scale: str, model: str) -> Iterator[Row]:
    yield from _of_training(Runs(folder, name, scale, model))


def _of_training(training: Training) -> Iterator[Row]:
    for rule in comparisons.RULES.values():
        yield from rule(training)


def _plain(rule: Callable[..., Iterator[Row]], *told: str) -> Callable[[Path, str, str, str], Iterator[Row]]:
    """Rows of a rule that takes a JSON file, and the scale or the model where it asks for them."""

    def read(file: Path, name: str, scale: str, model: str) -> Iterator[Row]:
        given = {"scale": scale, "model": model}
        yield from rule(Found(file, name), *(given[what] for what in told))

    return read


TRAINED = (*comparisons.RULES, *ablations.RULES)

SOURCES = (
    Source("training/toy/study.json", "toy", "toy", tuple(c for c in TRAINED if c not in ("C12", "C13", "C14")),
           "python -m toy.training", _study),
    Source("training/tiny-3/study.json", "tiny", "tiny-3", TRAINED, "python -m llm.training --model tiny-3", _study),
    Source("training/demo", "real", "demo", ("C1", "C2", "C3", "C4", "C12", "C14"),
           "esth train es --preset demo --out results/training/demo/es; "
           "esth train grpo --preset demo --out results/training/demo/grpo", _runs),
    Source("population_size/study.json", "tiny", "tiny-3", ("C9",), "python -m llm.population_size",
           _plain(ablations.population_size)),
    Source("antithetic/study.json", "tiny", "tiny-3", ("C10",), "python -m llm.antithetic",
           _plain(ablations.two_point_training)),
    Source("llm/demo-arithmetic/two_point.json", "real", "demo", ("C10",),
           "python -m llm --model demo --out results/llm/demo-arithmetic", _plain(ablations.two_point_measured)),
    *(
        Source(f"sparsity/{model}-es*/study.json", scale, model, ("C5",),
               f"python -m llm.sparsity RUN --out results/sparsity/{model}-es", _plain(updates.sparsity, "scale"))
        for scale, model in (("tiny", "tiny-3"), ("real", "demo"))
    ),
    *(
        Source(f"updates/{model}.json", scale, model, ("C6",),
               f"esth compare {model} RUN RUN --out results/updates/{model}.json",
               _plain(updates.landing, "scale", "model"))
        for scale, model in (("tiny", "tiny-3"), ("real", "demo"))
    ),
)  # fmt: skip


def rows(results: Path) -> list[Row]:
    """All claims in their order, each from toy to real and to the paper's size.

    Raises:
        InputError: no such folder, a file in it that is damaged or from another version.
    """
    if not results.is_dir():
        raise InputError(f"--results {results} is no folder")
    found = [row for source in SOURCES for row in source.rows(results)]
    paper = paper_rows()
    return [row for claim in CLAIMS for row in (*(r for r in found if r.claim == claim), paper[claim])]


def to_json(found: Sequence[Row]) -> dict[str, Any]:
    """Claims and rows as JSON types."""
    return {"claims": CLAIMS, "rows": [row.to_dict() for row in found]}

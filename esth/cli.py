"""The command line, `esth COMMAND`: a user's mistake is one line and exit status 2."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentError, ArgumentParser

import esth
from esth._files import write_text
from esth.diversity.config import DiversityConfig
from esth.errors import InputError
from esth.lemmas import LEMMAS
from esth.training.config import CONFIGS, GRPOConfig, nearest, read_config, to_json
from esth.training.evaluate import EvaluationConfig
from esth.training.presets import PRESETS as TRAINING_PRESETS

if TYPE_CHECKING:
    from esth.diversity import Progress
    from esth.sample import PopulationSample

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "quick": {"members": 4, "prompts": 6, "samples": 2},
}
"""Sizes by name; an option given beside a preset wins."""

OWN_OPTIONS = {
    "diversity": ["from", "out", "preset", "dry_run", "target_se", "trust_remote_code", "help"],
    "train": ["out", "preset", "config", "help"],
    "evaluate": ["base", "update", "out", "trust_remote_code", "help"],
}
"""Options of a command that are no fields of its configuration."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    return run("esth", _run, arguments)


def run(program: str, work: Callable[[list[str]], int], arguments: Sequence[str] | None) -> int:
    """The exit status of `work`; a user's mistake is one line and status 2, an interruption 130."""
    try:
        return work(list(sys.argv[1:] if arguments is None else arguments))
    except (InputError, ArgumentError) as error:
        print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{program}: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{program}: interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def parse(arguments: list[str]) -> Any:
    """The options of a command line; nothing is run.

    Raises:
        InputError, ArgumentError: an unknown option, a value that is not accepted.
    """
    command, method = (*arguments, "", "")[:2]
    settings = _settings(command, method)
    if settings is not None:
        arguments = _listed([spelled(a, settings) for a in arguments])
        _check_options(arguments, [f.name for f in fields(settings)] + OWN_OPTIONS[command])
    parser = _parser(method if command == "train" else command, _defaults(command, method, arguments))
    options = parser.parse_args(arguments)
    if options.subcommand == "diversity" and options.diversity.sources:
        refuse_beside_from(arguments, {"--from"})
    return options


def _run(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.subcommand == "diversity":
        return _diversity(options.diversity)
    if options.subcommand == "train":
        return _train(options.train.subcommand, options.train[options.train.subcommand])
    if options.subcommand == "evaluate":
        return _evaluate(options.evaluate)
    if options.subcommand == "compare":
        return _compare(options.compare)
    if options.subcommand == "report":
        return _report(options.report)
    if options.subcommand == "claims":
        return _claims(options.claims)
    return _attack(options.attack)


def _settings(command: str, method: str) -> type[Any] | None:
    """The dataclass whose fields a command's options are."""
    if command == "train":
        return CONFIGS.get(method)
    return {"diversity": DiversityConfig, "evaluate": EvaluationConfig}.get(command)


def _check_options(arguments: Sequence[str], known: list[str]) -> None:
    """Raise InputError for an option that the command does not have, with the nearest one; none is abbreviated."""
    for argument in arguments:
        name = argument[2:].partition("=")[0].replace("-", "_")
        if re.match(r"--[a-z]", argument) and name not in known:
            raise InputError(f"unknown option {argument.partition('=')[0]}; {nearest(name, known)}")


def _defaults(command: str, method: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The defaults that --preset or --config set, before the options themselves are read."""
    preset, file = _given("--preset", arguments), _given("--config", arguments)
    if command == "diversity":
        return PRESETS.get(preset or "", {})
    if command != "train" or method not in CONFIGS:
        return {}
    if preset is not None and file is not None:
        raise InputError("--preset and --config both name settings: give one of them")
    if file is not None:
        values = to_json(read_config(Path(file), method))
        return {name: value for name, value in values.items() if name != "method"}
    return TRAINING_PRESETS[method].get(preset or "", {})


def _given(option: str, arguments: Sequence[str]) -> str | None:
    """The value of an option among arguments, the last one if it is there twice."""
    values = [b for a, b in pairwise(arguments) if a == option]
    values += [a.partition("=")[2] for a in arguments if a.startswith(f"{option}=")]
    return values[-1] if values else None


def _listed(arguments: list[str]) -> list[str]:
    """Values of options that take a list, as one: --k 5 and --held_out chain:4,arithmetic."""
    found, lists = [], ("--k", "--held_out")
    for before, argument in pairwise(["", *arguments]):
        name, equals, value = argument.partition("=")
        given, head = (value, f"{name}=") if equals and name in lists else (argument, "")
        if (head or before in lists) and not given.startswith(("[", "--")) and given != "null":
            argument = f"{head}[{given}]"
        found.append(argument)
    return found


def spelled(argument: str, settings: type[Any]) -> str:
    """--max-tokens as --max_tokens: the options of a configuration are spelled as its fields."""
    name, equals, value = argument.partition("=")
    field = name[2:].replace("-", "_")
    known = name.startswith("--") and field in {f.name for f in fields(settings)}
    return f"--{field}{equals}{value}" if known else argument


def refuse_beside_from(arguments: Sequence[str], accepted: set[str]) -> None:
    """Raise InputError for an option beside --from that saved samples would not heed."""
    given = {a.partition("=")[0] for a in arguments if a.startswith("--")} - accepted
    if given:
        raise InputError(f"{min(given)} does not go with --from: the samples have their settings")


def _parser(chosen: str, defaults: dict[str, Any]) -> ArgumentParser:
    """All commands; `defaults` are those of the chosen one."""
    parser = ArgumentParser(prog="esth", description=esth.__doc__, exit_on_error=False, version=esth.__version__)
    commands = parser.add_subcommands(required=True)

    diversity = ArgumentParser(
        exit_on_error=False,
        description="JS diversity of a population around a checkpoint: bracket, prediction from the center, coverage.",
    )
    add = diversity.add_argument
    add(
        "models",
        nargs="*",
        default=[],
        help='a Hugging Face folder, a hub name, or "demo"; two are compared on the same prompts',
    )
    add("--from", dest="sources", nargs="+", metavar="FOLDER", help="saved samples to report again, without a model")
    add("--out", type=Path, default=Path("esth-diversity"), help="folder for samples and reports")
    add("--preset", choices=list(PRESETS), default="default", help="sizes; quick ends within a minute on the demo")
    add("--dry-run", action="store_true", help="say what it would cost, from a small pilot, and stop")
    add("--target-se", type=float, default=None, help="with --dry-run: the standard error of JS wanted, nats")
    add("--trust-remote-code", action="store_true", help="run Python code that comes with the checkpoint")
    diversity.add_class_arguments(DiversityConfig)
    if chosen == "diversity":
        diversity.set_defaults(defaults)
    commands.add_subcommand("diversity", diversity, help="measure the diversity of a checkpoint's populations")

    attack = ArgumentParser(exit_on_error=False, description="Search for an instance that breaks a bound of a lemma.")
    add = attack.add_argument
    add("lemma", choices=LEMMAS, help="whose bounds to attack")
    add("--instances", type=float, default=1e6, help="random instances of each bound, before local search")
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=Path("esth-attack"), help="folder of the search's state: the same command resumes")
    commands.add_subcommand("attack", attack, help="try to break the bounds")

    train = ArgumentParser(
        exit_on_error=False, description="Train a policy; the same command goes on where it stopped."
    )
    commands.add_subcommand("train", train, help="train with ES or GRPO")
    methods = train.add_subcommands(required=True)
    for method, kind in CONFIGS.items():
        one = ArgumentParser(exit_on_error=False, description=(kind.__doc__ or "").splitlines()[0])
        one.add_argument("--out", type=Path, default=Path(f"esth-{method}"), help="the run's folder")
        one.add_argument("--preset", choices=list(TRAINING_PRESETS[method]), default="default", help="settings by name")
        one.add_argument("--config", help="a JSON file of settings, such as a run's config.json; options win")
        one.add_class_arguments(kind)
        if method == chosen:
            one.set_defaults(defaults)
        methods.add_subcommand(method, one)

    evaluate = ArgumentParser(exit_on_error=False, description="pass@k, entropy, length, with intervals over prompts.")
    add = evaluate.add_argument
    add("model", help="a run's folder, a Hugging Face folder, a hub name, demo, tiny-3 or tiny-4")
    add("--base", help="another of these: differences are paired, on the same prompts with the same random numbers")
    add(
        "--update", dest="center", type=int, help="of an ES run: the center after so many updates, rebuilt from its log"
    )
    add("--out", type=Path, help="write every prompt's counts to this JSON file")
    add("--trust-remote-code", action="store_true", help="run Python code that comes with the checkpoint")
    evaluate.add_class_arguments(EvaluationConfig)
    commands.add_subcommand("evaluate", evaluate, help="evaluate a run or a model")

    compare = ArgumentParser(
        exit_on_error=False,
        description="What training did to the weights: how far they moved, which of them, and where.",
    )
    add = compare.add_argument
    add("base", help="a Hugging Face folder, a run's folder (its last center), a hub name, demo, tiny-3 or tiny-4")
    add("runs", nargs="+", metavar="RUN", help="what was trained from it: any of these with equal tensors")
    add("--top", type=int, default=100, help="how many of the largest changes are looked at")
    add("--layers", action="store_true", help="a table by layer too")
    add("--tensors", action="store_true", help="a table by tensor too")
    add(
        "--fisher",
        metavar="TASK",
        help="expect them by the base's Fisher information on TASK[:DIFFICULTY] too; loads it",
    )
    add("--fisher-prompts", type=int, help="prompts it is estimated from, two responses to each (32, or all)")
    add("--out", type=Path, help="write everything to this JSON file")
    commands.add_subcommand("compare", compare, help="what training did to the weights")

    report = ArgumentParser(exit_on_error=False, description="Runs beside each other, in one self-contained HTML file.")
    report.add_argument("runs", nargs="+", type=Path, help="folders of esth train, finished or not, and esth diversity")
    report.add_argument("--out", type=Path, default=Path("report.html"), help="the HTML file")
    commands.add_subcommand("report", report, help="write tables and figures of runs as HTML")

    claims = ArgumentParser(exit_on_error=False, description="The paper's claims C1-C14, each with its evidence.")
    add = claims.add_argument
    add("--results", type=Path, default=Path("results"), help="folder of results that the table is computed from")
    add("--out", type=Path, help="write all rows to this JSON file")
    add("--markdown", action="store_true", help="print Markdown in place of a table")
    add("--short", action="store_true", help="with --markdown: a line a claim")
    commands.add_subcommand("claims", claims, help="what was seen of the paper's claims")
    return parser


def _diversity(options: Any) -> int:
    from esth.diversity import compare, measure, report, write_json
    from esth.diversity.plan import plan
    from esth.diversity.show import show_comparison, show_plan, show_report

    config = DiversityConfig(**{f.name: getattr(options, f.name) for f in fields(DiversityConfig)})
    if bool(options.models) == bool(options.sources):
        raise InputError("name a model (a folder, a hub name, or demo), or saved samples with --from")
    if len(options.models or options.sources) > 2:
        raise InputError("at most two models, or two saved samples, are compared")
    if options.dry_run:
        if options.sources:
            raise InputError("--dry-run plans a new sample; it does not go with --from")
        for model in options.models:
            with progress_bars() as progress:
                planned = plan(model, config, options.target_se, progress, options.trust_remote_code)
            show_plan(planned)
        return 0
    if options.target_se is not None:
        raise InputError("--target-se goes with --dry-run")

    samples = [_load(Path(folder)) for folder in options.sources or ()]
    pair = len(options.models or ()) == 2
    for i, model in enumerate(options.models or ()):
        out = options.out / str(i + 1) if pair else options.out
        with progress_bars() as progress:
            samples.append(
                measure(model, config, out=out, progress=progress, trust_remote_code=options.trust_remote_code)
            )
    for sample in samples:
        show_report(report(sample))
    if len(samples) == 2:
        comparison = compare(*samples)
        show_comparison(comparison)
        if pair:
            write_json(options.out / "comparison.json", comparison.to_dict())
    if options.models:
        print(
            f"written to {options.out}; report again without a model: esth diversity --from {options.out}"
            + ("/1" * pair)
        )
    return 0


def _load(folder: Path) -> "PopulationSample":
    from esth.sample import PopulationSample

    return PopulationSample.load(folder / "sample" if (folder / "sample").is_dir() else folder)


@contextmanager
def progress_bars() -> "Iterator[Progress]":
    """A bar a stage, with tokens/s and the time left, on a terminal's standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = ("{task.description}", "{task.fields[rate]}")
    text, rate = (TextColumn(c) for c in columns)
    bars = Bars(
        text, BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn(compact=True), rate,
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    tasks: dict[str, Any] = {}
    tokens_so_far: dict[str, int] = {}

    def progress(stage: str, done: int, total: int, tokens: int) -> None:
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total, rate="")
            tokens_so_far[stage] = 0
        tokens_so_far[stage] += tokens
        seconds = bars.tasks[tasks[stage]].elapsed or 0.0
        speed = f"{tokens_so_far[stage] / seconds:,.0f} tokens/s" if tokens_so_far[stage] and seconds > 0.5 else ""
        bars.update(tasks[stage], completed=done, total=total, rate=speed)

    with bars:
        yield progress


def _train(method: str, options: Any) -> int:
    from esth.training import train
    from esth.training.show import show_run, watching

    kind = CONFIGS[method]
    config = kind(**{f.name: getattr(options, f.name) for f in fields(kind)})
    with watching(config.updates) as watch:
        run = train(config, options.out, watch)
    show_run(run)
    falls = isinstance(config, GRPOConfig) and config.lr_scheduler_type == "linear"  # to 0 at the end: no going on
    print(f"written to {options.out}" + ("" if falls else "; the same command with more --updates goes on"))
    return 0


def _evaluate(options: Any) -> int:
    from rich.console import Console

    from esth.training.evaluate import evaluate
    from esth.training.evaluation import save, table

    config = EvaluationConfig(**{f.name: getattr(options, f.name) for f in fields(EvaluationConfig)})
    _check_file(options.out)
    with progress_bars() as progress:
        found = evaluate(
            options.model,
            config,
            options.base,
            update=options.center,
            progress=progress,
            trust_remote_code=options.trust_remote_code,
        )
    console = Console()
    if not console.is_terminal:
        console.width = 150
    console.print(table(found.model, found.base, config.k))
    if options.out is not None:
        save(options.out, found.model)
        print(f"written to {options.out}")
    return 0


def _report(options: Any) -> int:
    from esth.analysis.report import write_report

    write_report(options.runs, options.out)
    print(f"written to {options.out}")
    return 0


def _claims(options: Any) -> int:
    from rich.console import Console

    from esth.analysis.claims import markdown, rows, short, tables, to_json
    from esth.diversity import write_json

    _check_file(options.out)
    if options.short and not options.markdown:
        raise InputError("--short goes with --markdown")
    found = rows(options.results)
    if options.markdown:
        sys.stdout.write(short(found) if options.short else markdown(found))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = 150
        for table in tables(found):
            console.print(table)
    if options.out is not None:
        write_json(options.out, to_json(found))
        print(f"written to {options.out}", file=sys.stderr)
    return 0


def _compare(options: Any) -> int:
    from esth.analysis.compare import compare
    from esth.analysis.show import show
    from esth.analysis.traces import TraceConfig

    _check_file(options.out)
    if options.fisher is None and options.fisher_prompts is not None:
        raise InputError("--fisher-prompts goes with --fisher")
    fisher = None if options.fisher is None else TraceConfig(options.fisher, prompts=options.fisher_prompts)
    with progress_bars() as progress:
        found = compare(options.base, options.runs, top=options.top, fisher=fisher, progress=progress)
    show(found, layers=options.layers, tensors=options.tensors)
    if options.out is not None:
        write_text(options.out, json.dumps(found.to_dict(), ensure_ascii=False) + "\n")
        print(f"written to {options.out}")
    return 0


def _check_file(out: Path | None) -> None:
    """Raise InputError for an --out where no file can be."""
    if out is not None and ((out.exists() and not out.is_file()) or any(p.is_file() for p in out.parents)):
        raise InputError(f"--out {out} must be a file in a folder")


def _attack(options: Any) -> int:
    from esth.attack import attack, show

    result = attack(options.lemma, instances=options.instances, seed=options.seed, out=options.out)
    show(result)
    return 1 if result.violated else 0


if __name__ == "__main__":
    sys.exit(main())

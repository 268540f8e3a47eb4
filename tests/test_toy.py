"""The toy studies: the command, its reproducibility, and that a wrong constant does not pass."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need the extra esth[plot]")

from esth import plots
from esth.check import Verdict
from esth.errors import InputError
from esth.lemmas import (
    LEMMAS,
    center_update,
    fisher_rate,
    population_advantage,
    reward_weighting,
    two_point,
)
from toy import center_update as toy_center_update
from toy import families
from toy import fisher_rate as toy_fisher_rate
from toy import population_advantage as toy_population_advantage
from toy import reward_weighting as toy_reward_weighting
from toy import two_point as toy_two_point
from toy.__main__ import generator, main
from toy.study import (
    Settings,
    all_signs,
    gauss_hermite,
    mean_variance,
    populations,
    power_law,
    zero_crossing,
)

ROOT = Path(__file__).parents[1]
QUICK = Settings(quick=True)


def verdicts(part):
    """Verdicts of one part with the very numbers that the command draws for it."""
    name = part.__module__.removeprefix("toy.")
    index = sys.modules[part.__module__].PARTS.index(part)
    checks, _ = part(QUICK, generator(QUICK, name, index))
    return [check.verdict for check in checks]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One quick run of the whole command: the finished process and its folder."""
    out = tmp_path_factory.mktemp("toy")
    command = [sys.executable, "-m", "toy", "--quick", "--out", str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False), out


def record(folder, name):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_quick_run_writes_every_study_and_violates_nothing(results):
    done, out = results
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(p.name for p in out.iterdir()) == sorted(f"{n}.{e}" for n in LEMMAS for e in ("json", "png"))
    for name in LEMMAS:
        found = record(out, name)
        assert found["settings"] == {"seed": 0, "sigma": [1e-3, 10.0], "quick": True}
        assert found["versions"]["numpy"] == np.__version__
        counts = [check["verdict"] for check in found["checks"]]
        assert "violated" not in counts
        assert counts.count("holds") >= 8
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_table_shows_every_statement_studied(results):
    table = results[0].stdout
    numbers = "L1.1 L1.2 L1.3 L1.4 L2.3 L2.4 L2.5 L2.6 L2.8 L3.1 L3.2 L3.3 L3.4 L3.5 L3.6 P4.1 P4.2 P4.3 P4.4 T5"
    assert [n for n in numbers.split() if f" {n} " not in table] == []


@pytest.mark.slow
def test_relations_that_any_numbers_satisfy_are_called_identities(results):
    _, out = results
    for name, statements in {
        "population_advantage": ["P_pop − P_mix between its odds bounds"],
        "reward_weighting": ["gain = beta rho sd(p)", "gain of pass@30"],
        "center_update": ["[p(θ⁺) − p] − [p̄_w − p̄]", "rise of pass@K", "gain of C_N"],
        "two_point": ["over ± pairs"],
    }.items():
        for statement in statements:
            found = [c["verdict"] for c in record(out, name)["checks"] if statement in c["what"]]
            assert found and set(found) == {"identity"}, statement


@pytest.mark.slow
def test_same_seed_same_numbers_whatever_else_runs(results, tmp_path, capsys):
    _, out = results
    assert main(["T5", "L2", "--quick", "--out", str(tmp_path)]) == 0
    for name in ("population_advantage", "two_point"):
        first, second = record(out, name), record(tmp_path, name)
        assert first.pop("wall_time_seconds") > 0 and second.pop("wall_time_seconds") > 0
        assert first == second
        assert (out / f"{name}.png").read_bytes() == (tmp_path / f"{name}.png").read_bytes()


def test_another_seed_other_numbers():
    one, two = (toy_two_point.algebra(QUICK, np.random.default_rng(seed))[0] for seed in (0, 1))
    assert one[1].measured != two[1].measured


@pytest.mark.parametrize(
    ("module", "function", "part", "factor"),
    [
        (fisher_rate, "predict", toy_fisher_rate.exact, 1.001),
        (fisher_rate, "predict", toy_fisher_rate.rate, 1.05),
        (fisher_rate, "predict_quadratic", toy_fisher_rate.one_population, 1.05),
        (fisher_rate, "predict_variance", toy_fisher_rate.spread, 1.2),
        (population_advantage, "predict_rate", toy_population_advantage.exact, 1.001),
        (population_advantage, "smoothed_population_success", toy_population_advantage.smoothed, 1.05),
        (population_advantage, "smoothed_pair_success", toy_population_advantage.smoothed, 1.05),
        (population_advantage, "smoothed_shift", toy_population_advantage.smoothed, 1.001),
        (reward_weighting, "predict", toy_reward_weighting.identities, 1.001),
        (reward_weighting, "softmax_slope", toy_reward_weighting.tilts, 1.001),
        (reward_weighting, "linear_fitness_loss", toy_reward_weighting.diversity_price, 1.5),
        (center_update, "predict", toy_center_update.transfer, 1.05),
        (center_update, "softmax_remainder", toy_center_update.remainders, 0.8),
        (center_update, "step_square", toy_center_update.step_length, 1.05),
        (center_update, "drift", toy_center_update.drift, 1.001),
        (two_point, "predict_linear", toy_two_point.linear, 1.05),
    ],
)
def test_a_wrong_constant_is_violated(module, function, part, factor, monkeypatch):
    # Unchanged, none is violated: `test_quick_run_writes_every_study_and_violates_nothing`.
    true = getattr(module, function)
    monkeypatch.setattr(module, function, lambda *a, **k: factor * true(*a, **k))
    assert Verdict.VIOLATED in verdicts(part)


def test_a_violated_check_exits_with_1(monkeypatch, tmp_path, capsys):
    true = reward_weighting.predict_raw
    monkeypatch.setattr(reward_weighting, "predict_raw", lambda *a: 1.5 * true(*a))
    assert main(["reward_weighting", "--quick", "--out", str(tmp_path)]) == 1
    assert "violated" in capsys.readouterr().out
    assert "violated" in {check["verdict"] for check in record(tmp_path, "reward_weighting")["checks"]}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["L9"], "L9"),
        (["fisher"], "fisher"),
        (["--sigma", "-1", "10"], "sigma"),
        (["--sigma", "0.5", "10"], "sigma"),
        (["--sigma", "0.001", "nan"], "sigma"),
        (["--sigma", "small", "10"], "small"),
        (["--seed", "-1"], "seed"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(arguments, named, tmp_path, capsys):
    out = tmp_path / "new"
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--out", str(out)])
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert error.startswith("toy: ") and error.count("\n") == 1 and named in error
    assert not out.exists()


def test_a_folder_that_cannot_be_made_is_bad_usage(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        main(["T5", "--quick", "--out", str(tmp_path / "file" / "below")])
    assert stop.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_quadrature_gives_normal_moments_and_signs_are_all_signs():
    node, mass = gauss_hermite(12, 2)
    x, y = node.T
    assert np.allclose([mass.sum(), mass @ x**2, mass @ x**4, mass @ (x**2 * y**4)], [1, 1, 3, 3], rtol=1e-12)
    assert np.isclose(mass @ np.exp(x), np.exp(0.5), rtol=1e-9)
    signs = all_signs(5)
    assert len({tuple(row) for row in signs}) == 32 and set(signs.ravel()) == {-1.0, 1.0}


def test_power_law_has_the_slope_and_an_honest_error():
    x = np.geomspace(0.1, 10, 6)
    assert power_law(x, 3 * x[None] ** 2.5)[0] == pytest.approx(2.5)
    slopes, errors = [], []
    rng = np.random.default_rng(0)
    for _ in range(400):
        slope, error = power_law(x, x**2 * np.exp(0.3 * rng.standard_normal((200, 6))))
        slopes.append(slope)
        errors.append(error)
    assert np.std(slopes) == pytest.approx(np.mean(errors), rel=0.12)


def test_mean_variance_is_unbiased_with_an_honest_error():
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((500, 300, 2)) * [1.0, 3.0]
    found = np.array([mean_variance(one) for one in draws])
    assert found[:, 0].mean() == pytest.approx(5.0, rel=0.01)
    assert found[:, 0].std() == pytest.approx(found[:, 1].mean(), rel=0.12)
    assert zero_crossing(np.arange(5.0), 3 - 2 * np.arange(5.0)) == pytest.approx(1.5)


def test_drawing_stops_at_the_precision_or_the_limit():
    def square(epsilon):
        return np.mean(epsilon**2, axis=(1, 2))[:, None] * [1.0, 2.0]

    rng = np.random.default_rng(0)
    assert len(populations(square, "gaussian", rng, 4, 2, most=1000)) == 1000
    values = populations(square, "gaussian", rng, 1024, 2, most=10**6, precision=0.01)
    relative = values.std(axis=0) / np.sqrt(len(values)) / values.mean(axis=0)
    assert len(values) < 1000 and np.all(relative <= 0.01)
    pairs = populations(lambda e: e.sum(axis=(1, 2)), "antithetic", rng, 8, 3, most=50)
    assert np.allclose(pairs, 0, atol=1e-12)


def test_instances_are_what_their_names_say():
    rng = np.random.default_rng(0)
    for sign in (1, -1):
        instance = families.curved(rng, sign)
        p = [float(instance.success(np.array([[x]]), 1.0)[0]) for x in (-1e-3, 0.0, 1e-3)]
        assert sign * (p[0] - 2 * p[1] + p[2]) > 0.1 * 1e-6 * 0.99
    assert abs(float(families.steep(rng).gradient[0])) > 0.15
    for instance in families.families(rng):
        for n in (2, 256):
            p = np.atleast_1d(families.covered(instance, n).p)
            every = np.exp(instance.policy.log_p(instance.theta)).reshape(len(p), -1)
            best = np.abs(np.log(every * n)).min(axis=1)
            assert np.allclose(np.abs(np.log(p * n)), best)


def test_settings_refuse_what_cannot_be_fitted():
    for sigma in ((0.02, 10.0), (1e-6, 10.0), (1e-3, 0.5), (1e-3, 1e4), (float("nan"), 10.0)):
        with pytest.raises(InputError, match="sigma from"):
            Settings(sigma=sigma)
    assert Settings(quick=True).members < Settings().members
    grid = Settings().sigmas()
    assert (grid[0], grid[-1]) == pytest.approx((1e-3, 10.0))


def test_a_figure_is_written_whole_or_not_at_all(tmp_path):
    fig, (ax,) = plots.figure("one", 1)
    plots.measured(ax, [1, 10], [2, 3], [0.1, 0.1], name="points")
    plots.predicted(ax, [1, 10], [2, 3], style=1, name="line")
    plots.band(ax, [1, 10], [1, 2], [3, 4], name="bracket")
    plots.label(ax, "title", "σ", "JS (nats)", log="xy")
    plots.ticks(ax, [1, 10])
    plots.legend(ax)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["line", "bracket", "points"]
    path = tmp_path / "deep" / "figure.png"
    plots.save(fig, path)
    first = path.read_bytes()
    plots.save(fig, path)
    assert path.read_bytes() == first and [p.name for p in path.parent.iterdir()] == ["figure.png"]
    fig.savefig = lambda *a, **k: (_ for _ in ()).throw(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        plots.save(fig, path)
    assert path.read_bytes() == first and [p.name for p in path.parent.iterdir()] == ["figure.png"]


def test_every_pair_of_styles_differs_without_colour():
    shapes = list(zip(plots.MARKERS, map(str, plots.DASHES), strict=True))
    assert len(set(plots.MARKERS)) == len(plots.COLOURS) == len(set(plots.COLOURS))
    assert len({dash for _, dash in shapes}) == len(shapes)

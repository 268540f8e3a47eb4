"""Noise: exact moments of every family, and the portable generator against an implementation of its own definition."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr

from esth.errors import InputError
from esth.noise import (
    FAMILIES,
    Combination,
    Member,
    Restricted,
    draw,
    hashed,
    matrix_shape,
    parameter_noise,
    population,
    quantile_tables,
    uniforms,
)

NAME = "model.layers.0.mlp.up_proj.weight"


# Exact toy policies


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rank", [1, 3])
def test_draw_has_mean_0_covariance_identity_and_the_fourth_moment_of_its_family(family: str, rank: int) -> None:
    n, d = 200_000, 6
    epsilon = draw(family, np.random.default_rng(0), n, d, rank=rank)
    # E ε⁴: 3 for a normal, 1 for a sign, 3 + 6/r for a sum of r products of normals over √r.
    fourth = {"rademacher": 1.0, "low-rank": 3 + 6 / rank}.get(family, 3.0)
    independent = epsilon[::2] if family == "antithetic" else epsilon

    def agrees(values: np.ndarray, expected: np.ndarray | float) -> None:
        error = values.std(axis=0) / math.sqrt(len(values)) + 1e-12
        assert np.all(np.abs(values.mean(axis=0) - expected) < 4.5 * error)

    agrees(independent, 0.0)
    agrees(independent**4, fourth)
    agrees((independent[:, :, None] * independent[:, None, :]).reshape(-1, d * d), np.eye(d).ravel())


def test_antithetic_rows_come_in_opposite_pairs() -> None:
    epsilon = draw("antithetic", np.random.default_rng(1), 6, 5)
    assert np.array_equal(epsilon[1::2], -epsilon[0::2])
    assert np.linalg.matrix_rank(epsilon[0::2]) == 3


def test_rademacher_entries_are_signs() -> None:
    assert set(np.unique(draw("rademacher", np.random.default_rng(1), 50, 7))) == {-1.0, 1.0}


@pytest.mark.parametrize(("rank", "shape"), [(1, (4, 6)), (2, (4, 6)), (3, (3, 8))])
def test_low_rank_rows_are_matrices_of_that_rank(rank: int, shape: tuple[int, int]) -> None:
    epsilon = draw("low-rank", np.random.default_rng(2), 5, 24, rank=rank, shape=shape)
    assert [np.linalg.matrix_rank(row.reshape(shape)) for row in epsilon] == [rank] * 5
    assert matrix_shape(24) == (4, 6) and matrix_shape(7) == (1, 7) and matrix_shape(49) == (7, 7)


@pytest.mark.parametrize(
    "arguments",
    [
        {"family": "cauchy"},
        {"family": "antithetic", "n": 3},
        {"n": -1},
        {"d": 0},
        {"family": "low-rank", "rank": 0},
        {"family": "low-rank", "shape": (2, 2)},
    ],
)
def test_draw_refuses_in_one_line(arguments: dict) -> None:
    with pytest.raises(InputError) as error:
        draw(**{"family": "gaussian", "rng": np.random.default_rng(0), "n": 2, "d": 6} | arguments)
    assert "\n" not in str(error.value)


# The portable generator


def philox(key: int, block: int) -> list[int]:
    """Philox4x64-10 (Salmon et al. 2011), block number `block` of NumPy's stream, in Python's integers."""
    mask = 2**64 - 1
    k = [key & mask, key >> 64]
    counter = block + 1  # NumPy counts before it draws
    x = [counter >> 64 * i & mask for i in range(4)]
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [b >> 64 ^ x[1] ^ k[0], b & mask, a >> 64 ^ x[3] ^ k[1], a & mask]
        k = [k[0] + 0x9E3779B97F4A7C15 & mask, k[1] + 0xBB67AE8584CAA73B & mask]
    return x


def key_of(*parts: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"[{', '.join(parts)}]".encode(), digest_size=16).digest(), "little")


def test_gaussian_noise_is_its_written_definition() -> None:
    first, second = (table.astype(float) for table in quantile_tables())
    key = key_of("7", f'"{NAME}"')
    expected = []
    for block in range(3):
        for word in philox(key, block):
            a, b, c, d = (word >> shift & 0xFFFF for shift in (0, 16, 32, 48))
            expected += [first[a] + second[b], first[c] + second[d]]
    assert parameter_noise(7, NAME, (24,)).tolist() == expected


def test_rademacher_noise_is_its_written_definition() -> None:
    key = key_of("7", f'"{NAME}"', '"signs"')
    expected = [2 * (word >> bit & 1) - 1 for word in philox(key, 0) for bit in range(64)]
    assert parameter_noise(7, NAME, (256,), "rademacher").tolist() == expected


def test_low_rank_noise_is_a_sum_of_outer_products_and_gaussian_elsewhere() -> None:
    rank, shape = 3, (5, 7)
    noise = parameter_noise(7, NAME, shape, "low-rank", rank=rank).reshape(shape)
    key = [[hashed(7, NAME, side, k, bits=128) for side in ("rows", "columns")] for k in range(rank)]

    def normals(key: int, count: int) -> np.ndarray:
        first, second = (table.astype(float) for table in quantile_tables())
        index = [w >> s & 0xFFFF for block in range(4) for w in philox(key, block) for s in (0, 16, 32, 48)]
        return np.array([first[i] + second[j] for i, j in zip(index[::2], index[1::2], strict=True)])[:count]

    exact = sum(np.outer(normals(a, 5), normals(b, 7)) for a, b in key) / math.sqrt(rank)
    np.testing.assert_allclose(noise, exact, rtol=0, atol=1e-6)
    assert np.linalg.matrix_rank(noise, tol=1e-4) == rank
    for other in ((35,), (5, 7, 1)):
        assert np.array_equal(parameter_noise(7, NAME, other, "low-rank"), parameter_noise(7, NAME, other))


def test_the_tables_have_the_same_bits_on_every_machine() -> None:
    tables = np.stack(quantile_tables())
    assert hashlib.sha256(tables.astype("<f4").tobytes()).hexdigest() == (
        "d7ccf1fa60deb123b3e548c48b1edcaf906c521b19258a23060033ebdca702c7"
    )
    assert np.array_equal(tables[:, ::-1], -tables)
    assert np.array_equal(np.rint(tables * 2.0**20), tables.astype(float) * 2.0**20)
    assert float(tables.sum(axis=0).max()) * 2**20 < 2**24  # sums are exact in float32
    # No quantile lies so near a rounding boundary that another library's last digits could move it.
    golden = (1 + math.sqrt(5)) / 2
    quantile = stats.norm.ppf((np.arange(1, 65535) + 0.5) / 65536)
    for weight, table in zip((1 / golden, 1 / math.sqrt(golden)), tables, strict=True):
        steps = quantile * weight * 2**20
        assert np.array_equal(np.rint(steps), table[1:-1].astype(float) * 2**20)
        assert np.abs(steps % 1 - 0.5).min() > 100 * np.spacing(np.abs(steps).max())


def test_the_distribution_of_the_noise_is_close_to_normal() -> None:
    """Exact: the noise is the sum of two independent uniform draws from known tables."""
    a, b = (table.astype(float) for table in quantile_tables())
    variance = (a**2).mean() + (b**2).mean()
    assert abs(variance - 1) < 2e-9
    fourth = (a**4).mean() + 6 * (a**2).mean() * (b**2).mean() + (b**4).mean()
    assert -6e-5 < fourth / variance**2 - 3 < -5e-5
    assert a[-1] + b[-1] == pytest.approx(6.18, abs=5e-3)
    rng = np.random.default_rng(0)
    atoms = rng.choice(a, 100) + rng.choice(b, 100)
    near_zero = a[32768:32818] - b[32768:32818]
    x = np.concatenate([np.linspace(-6.2, 6.2, 201), np.linspace(-4e-4, 4e-4, 101), atoms, near_zero])
    below = np.array([np.searchsorted(b, at - a, side="left").mean() for at in x]) / 65536
    up_to = np.array([np.searchsorted(b, at - a, side="right").mean() for at in x]) / 65536
    assert max(np.abs(below - ndtr(x)).max(), np.abs(up_to - ndtr(x)).max()) < 2.6e-7


def test_drawn_noise_follows_that_distribution() -> None:
    noise = parameter_noise(3, NAME, (2_000_000,)).astype(float)
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    edges = stats.norm.ppf(np.linspace(0, 1, 257)[1:-1])
    counts = np.bincount(np.searchsorted(edges, noise), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-3
    tail = (np.abs(noise) > 4).sum()
    assert stats.poisson.cdf(tail, 2e6 * 2 * ndtr(-4)) > 1e-3 and stats.poisson.sf(tail, 2e6 * 2 * ndtr(-4)) > 1e-3


def test_seeds_names_and_positions_are_independent() -> None:
    n = 1_000_000
    base = parameter_noise(1, NAME, (n,)).astype(float)
    others = {
        "next seed": parameter_noise(2, NAME, (n,)),
        "far seed": parameter_noise(2**63 + 1, NAME, (n,)),
        "name": parameter_noise(1, NAME.replace("0", "1"), (n,)),
        "signs": parameter_noise(1, NAME, (n,), "rademacher"),
    }
    pairs = {name: (base, other.astype(float)) for name, other in others.items()}
    pairs |= {f"lag {lag}": (base[:-lag], base[lag:]) for lag in (1, 2, 3, 4, 7, 8, 16, 65536)}
    for name, (x, y) in pairs.items():
        for power in (1, 2):  # linear, and in the spread
            u, v = x**power - (power == 2), y**power - (power == 2)
            if v.std() > 0:
                z = (u * v).mean() / (u.std() * v.std()) * math.sqrt(len(u))
                assert abs(z) < 4.5, (name, power, z)


@given(
    family=st.sampled_from(FAMILIES),
    shape=st.sampled_from([(70_000,), (300, 250), (7,), (1, 9), (3, 5, 7)]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_slices_are_slices_of_the_whole(family: str, shape: tuple[int, ...], data: st.DataObject) -> None:
    size = math.prod(shape)
    start = data.draw(st.integers(0, size))
    count = data.draw(st.integers(0, size - start))
    whole = parameter_noise(5, NAME, shape, family, rank=2)
    assert whole.dtype == np.float32 and whole.shape == (size,)
    part = parameter_noise(5, NAME, shape, family, start, count, rank=2)
    assert np.array_equal(part, whole[start : start + count])


def test_antithetic_directions_are_gaussian_up_to_the_member_s_sign() -> None:
    assert np.array_equal(parameter_noise(5, NAME, (33,), "antithetic"), parameter_noise(5, NAME, (33,)))
    first, second = population(11, 2, "antithetic")
    assert np.array_equal(first.noise(NAME, (33,)), -second.noise(NAME, (33,)))
    assert np.array_equal(first.noise(NAME, (33,)), parameter_noise(first.seed, NAME, (33,)))


@pytest.mark.parametrize("family", FAMILIES)
def test_scaled_noise_is_rounded_once(family: str) -> None:
    member = Member(5, -1, family)
    exact = -np.float32(0.013).astype(float) * parameter_noise(5, NAME, (4, 6), family).astype(float)
    assert np.array_equal(member.noise(NAME, (4, 6), scale=0.013), exact.astype(np.float32))


def test_a_population_is_named_by_one_seed() -> None:
    members = population(0, 64)
    assert len({member.seed for member in members}) == 64
    assert population(0, 8) == members[:8]
    assert not {member.seed for member in members} & {member.seed for member in population(1, 64)}
    pairs = population(0, 64, "antithetic")
    assert [member.sign for member in pairs] == [1, -1] * 32
    assert [member.seed for member in pairs[0::2]] == [member.seed for member in pairs[1::2]]
    assert len({member.seed for member in pairs}) == 32


def test_a_restricted_member_moves_its_parameters_only() -> None:
    member = Member(5, -1)
    part = Restricted(member, frozenset({NAME}))
    assert np.array_equal(part.noise(NAME, (3, 4), 2, 5, scale=0.5), member.noise(NAME, (3, 4), 2, 5, scale=0.5))
    assert np.array_equal(part.noise("other", (3, 4), 2), np.zeros(10, np.float32))
    assert part == Restricted(member, frozenset([NAME])) and part.key != member.key
    assert part.key != Restricted(member, frozenset({"other"})).key
    several = Restricted(member, frozenset(map(str, range(40))))
    assert str(several).endswith(f"{sorted(map(str, range(40)))})"), "a name that every process gives"


def test_a_combination_is_the_weighted_sum_of_its_terms() -> None:
    members = population(1, 3)
    coefficients = (0.25, -1.5, 0.1)
    direction = Combination(tuple(zip(members, coefficients, strict=True)))
    exact = sum(c * m.noise(NAME, (3, 4)).astype(np.float64) for m, c in zip(members, coefficients, strict=True))
    assert direction.noise(NAME, (3, 4), scale=2.0) == pytest.approx(2 * exact, abs=1e-6)
    assert np.array_equal(direction.noise(NAME, (3, 4), 4, 3), direction.noise(NAME, (3, 4))[4:7])
    other = Combination(tuple(zip(members, (0.25, -1.5, 0.2), strict=True)))
    assert direction.key != other.key and direction != other


@pytest.mark.parametrize(
    "make",
    [
        lambda: population(0, 0),
        lambda: population(0, 3, "antithetic"),
        lambda: population(0, 2, "cauchy"),
        lambda: Member(-1),
        lambda: Member(2**64),
        lambda: Member(0, 0),
        lambda: Member(0, 1, "low-rank", 0),
        lambda: parameter_noise(0, NAME, (3, 4), start=10, count=3),
        lambda: parameter_noise(0, NAME, (3, 4), start=-1),
        lambda: parameter_noise(0, NAME, (3, 4), "cauchy"),
    ],
)
def test_bad_members_are_refused(make) -> None:
    with pytest.raises(InputError):
        make()


def test_keys_of_different_parts_differ() -> None:
    keys = [("a", "b"), ("ab",), ("a, b",), ('a", "b',), ("a", 1), ("a", "1"), ("a", 1, ""), (1, "a"), ("a", -1)]
    assert len({hashed(*key) for key in keys}) == len(keys)
    assert hashed("a", np.int64(1)) == hashed("a", 1)


def test_uniform_streams() -> None:
    draws = uniforms("response", 0, count=1_000_000)
    assert np.array_equal(uniforms("response", 0, count=10), draws[:10])
    expected = [(word >> 13) / 2**51 for word in philox(key_of('"response"', "0"), 0)]
    assert draws[:4].tolist() == expected
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    largest = 1 - 2.0**-51  # of any stream
    totals = np.concatenate([1 + np.arange(-50, 51) * 2.0**-53, np.random.default_rng(0).uniform(0.9, 1.1, 100_000)])
    assert np.all(largest * totals < totals)

"""Which number a response answers with, against readings decided by hand and against exact arithmetic."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esth.tasks.numbers import Number, find_number, last_box, read_reference

F = Fraction

READINGS = {
    # the usual spellings
    "#### 18": 18,
    r"\boxed{18}": 18,
    "$1,234.50": F(2469, 2),
    "18.": 18,
    "18.0": 18,
    "-3": -3,
    "\u22123": -3,
    "3/4": F(3, 4),
    "18 apples": 18,
    "She has 18 apples!": 18,
    ".5": F(1, 2),
    "1.5e3": 1500,
    "007": 7,
    "**18**": 18,
    "`18`": 18,
    "(18)": 18,
    '{"answer": 18}': 18,
    "US$18 a day": 18,
    r"\$18": 18,
    "-$5": -5,
    "$-5$": -5,
    "x = -3": -3,
    r"$\frac{3}{4}$": F(3, 4),
    r"\dfrac34": F(3, 4),
    r"-\frac{3}{4}": F(-3, 4),
    r"1\frac{3}{4}": F(7, 4),
    "1 3/4 cups": F(7, 4),
    "-(1/3)": F(-1, 3),
    r"1{,}234": 1234,
    r"1\,234": 1234,
    r"\text{18}": 18,
    r"90^\circ": 90,
    "18-year-old": 18,
    "6th": 6,
    # the last one counts
    "18 of 20": 20,
    "1, 2": 2,
    "18 in 2024": 2024,
    "9 + 9 = 18": 18,
    "48 / 2 = 24": 24,
    "- 3 apples": 3,
    "between 3 and 5": 5,
    # unless an earlier one is marked; the later mark wins, and a heading is no mark
    "#### 18\nThat took 3 steps.": 18,
    r"\boxed{18} and 9 + 9 was the check": 18,
    r"\boxed{1} no, \boxed{2}": 2,
    "\\boxed{1}\n#### 2": 2,
    "#### 1\n\\boxed{2}": 2,
    "#### Step 1: add\nThe sum is 18 apples": 18,
    "#### 1. Add them\nThe sum is 18 apples": 18,
    r"\boxed{x = 18}": 18,
    r"\boxed{18 \text{ apples}}": 18,
    r"\boxed{18\text{ cm}^2}": 18,
    r"\boxed{\boxed{18}}": 18,
    r"\boxed{18 km/h}": 18,
    r"\boxed{5/hour}": 5,
    # parts of words and of units are passed over
    "18 cm^2": 18,
    "18 m^{2}": 18,
    "18 g of H2O": 18,
    "18 for x_1": 18,
    "18 cases of COVID-19": 18,
    # unfinished, symbolic or ambiguous: no answer
    "0 + 9": None,
    "9 apples + 9": None,
    "5-3": None,
    "5 - 3": None,
    "5 -3": None,
    "3\u20135": None,
    "9 × 2": None,
    "9 x 2": None,
    "9*2": None,
    r"9 \times 2": None,
    "48/2": None,
    r"\frac{48}{2}": None,
    "2^10": None,
    "2**10": None,
    "2³": None,
    "3½": None,
    r"\boxed{2^{10}}": None,
    "3x": None,
    r"2\pi": None,
    r"3\sqrt{2}": None,
    r"\sqrt2": None,
    r"\frac{\sqrt{3}}{2}": None,
    "3:30": None,
    "5/2/2024": None,
    "1,2": None,
    "1,2345": None,
    "12,34,567": None,
    "1/0": None,
    "1" * 31: None,
    r"\boxed{18": None,
    r"18 \boxed{}": None,
    r"18 \boxed{none}": None,
    r"\boxed{3, 4}": None,
    r"\boxed{3x + 4}": None,
    r"\boxed{n - 3}": None,
    r"\boxed{18/x}": None,
    "\uff11\uff18": None,
    "\u0661\u0668": None,
    "": None,
    "none": None,
}


@pytest.mark.parametrize(("response", "value"), READINGS.items())
def test_reading(response: str, value: Fraction | int | None) -> None:
    found = find_number(response)
    assert (None if found is None else found.value * found.scale) == value


@pytest.mark.parametrize(
    ("answer", "value"),
    {
        "9 (apples)": 9,
        "14  (seats)": 14,
        "145.0": 145,
        "2,125": 2125,
        "025": 25,
        "-(1/3)": F(-1, 3),
        "5/2": F(5, 2),
        "Some steps: 3 + 4 = 7.\n#### 7": 7,
        "6th": 6,
        "$4.50": F(9, 2),
        # an answer that is no single number is none at all, though a number stands in it
        "3:30 p.m.": None,
        "5:6": None,
        "February 3rd": None,
        "The 60th caller.": None,
        "Rug B": None,
        "2 or 3": None,
    }.items(),
)
def test_reference(answer: str, value: Fraction | int | None) -> None:
    found = read_reference(answer)
    assert (None if found is None else found.value) == value


@pytest.mark.parametrize(
    ("answer", "reference", "agrees"),
    [
        ("75%", "75", True),
        ("75%", "0.75", True),
        ("0.75", "75%", True),
        ("75", "75%", True),
        ("75%", "75%", True),
        ("0.75%", "75%", False),
        ("75 percent", "3/4", True),
        ("75%", "7500", False),
        ("75", "0.75", False),
        ("1.5 million", "1,500,000", True),
        ("1,500,000", "1.5 million", True),
        ("1.5 million", "1.5", True),
        ("1.5 million", "1500 thousand", True),
        ("1.5 million", "15", False),
        ("1.5 million", "1.5 billion", False),
        ("10/3", "3.33333", True),
        ("3.33333333", "3.33333", True),
        ("3.33", "3.33333", False),
        ("3.3334", "3.333", True),  # within half a unit of the reference's last place …
        ("3.3336", "3.333", False),  # … and beyond it
        ("3.3335", "3.333", True),
        ("10/3", "3.33", False),  # two decimals are money, not rounding
        ("0.125", "0.12", False),
        ("18.2", "18", False),
    ],
)
def test_agreement(answer: str, reference: str, agrees: bool) -> None:
    found, wanted = find_number(answer), read_reference(reference)
    assert found is not None and wanted is not None
    assert found.agrees(wanted) is agrees


FRAMES = [
    "{}",
    "so {}.",
    "= {}",
    "**{}**",
    "$ {} $",
    r"\({}\)",
    "\\boxed{{{}}}",
    "#### {}",
    "it is {} apples\n",
    "3 + 4 = 7. {}",
]


@settings(deadline=None)
@given(st.integers(-(10**20), 10**20), st.integers(0, 6), st.sampled_from(FRAMES), st.booleans())
def test_every_decimal_is_read_exactly(digits: int, places: int, frame: str, commas: bool) -> None:
    sign, size = "-" if digits < 0 else "", f"{abs(digits):0{places + 1}}"
    whole, part = size[: len(size) - places], size[len(size) - places :]
    spelled = sign + (f"{int(whole):,}" if commas else whole) + ("." + part if places else "")
    assert find_number(frame.format(spelled)) == Number(F(digits, 10**places), decimals=places)


@settings(deadline=None)
@given(
    st.integers(1, 10**9),
    st.integers(2, 10**9),
    st.sampled_from(FRAMES),
    st.sampled_from(["{}/{}", "\\frac{{{}}}{{{}}}"]),
)
def test_every_quotient_is_read_exactly(above: int, below: int, frame: str, form: str) -> None:
    found = find_number(frame.format(form.format(above, below)))
    if above % below:
        assert found is not None and found.value == F(above, below)
    else:
        assert found is None


@settings(deadline=None)
@given(st.text(), st.text())
def test_any_text(left: str, right: str) -> None:
    assert find_number(left + right) is None or isinstance(find_number(left + right), Number)
    marked = find_number(f"{left}\\boxed{{17}} {right.replace('boxed', '').replace('#', '')}")
    assert marked is not None and marked.value == 17


def test_box() -> None:
    assert last_box(r"a \boxed{\frac{1}{2}} b") == (2, r"\frac{1}{2}")
    assert last_box(r"\boxed{1} \boxed{2") is None
    assert last_box(r"\boxed{" + "1" * 100_000 + "}") is None


def test_only_the_tail_is_read() -> None:
    assert find_number("18" + "x" * 16_382) == Number(F(18))
    assert find_number("18" + "x" * 16_383) is None
    assert find_number("18" + "x" * 16_384) is None
    assert find_number("a" * 20_000 + r"\boxed{18}") == Number(F(18))


def test_long_literals() -> None:
    assert find_number("7" * 30) == Number(F("7" * 30))
    assert find_number("7" * 31) is None
    assert find_number("1e99") == Number(F(10**99))
    assert find_number("1e100") is None

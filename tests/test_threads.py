"""Work shared out among threads: order, exceptions, and torch's own threads as they were."""

import itertools
import threading

import pytest

torch = pytest.importorskip("torch")

from esth._threads import side_by_side  # noqa: E402


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_pieces(threads: int) -> None:
    inside = []

    def square(i: int) -> int:
        inside.append((threading.get_ident(), torch.get_num_threads()))
        return i * i

    assert side_by_side(square, range(50)) == [i * i for i in range(50)]
    assert len({ident for ident, _ in inside}) <= threads
    assert {count for _, count in inside} == {1}
    assert torch.get_num_threads() == threads
    assert side_by_side(square, []) == []


def test_all_threads_work_at_once(threads: int) -> None:
    meeting = threading.Barrier(threads)
    side_by_side(lambda _: meeting.wait(timeout=60), range(threads))


def test_nothing_runs_when_the_exception_comes(threads: int) -> None:
    begun, ended = itertools.count(), []

    def work(i: int) -> None:
        if next(begun) == 4:
            raise KeyboardInterrupt
        ended.append(i)

    with pytest.raises(KeyboardInterrupt):
        side_by_side(work, range(200))
    done = len(ended)
    assert done >= 4
    assert next(begun) == done + 1  # nothing between begun and ended
    assert torch.get_num_threads() == threads

"""Engines in processes of their own: the bits of one engine, whoever is killed."""

import dataclasses
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from esth.errors import InputError, MissingExtra  # noqa: E402
from esth.models import Engine, Response, Sampling, load_checkpoint, load_engine  # noqa: E402
from esth.models.saving import save_center  # noqa: E402
from esth.models.stored import StoredWeights, read_arrays  # noqa: E402
from esth.models.workers import EngineLost, Local, Workers, load_workers  # noqa: E402
from esth.noise import Member, population  # noqa: E402

ray_pool = pytest.importorskip("esth.models.ray_pool")
import ray  # noqa: E402
import ray.cloudpickle  # noqa: E402

# Workers do not find the folder of tests: what is defined here travels whole.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

PROMPTS = [[5, 6, 7, 8], [9], [10, 11, 3, 4, 20, 21]]
MEMBERS = population(3, 6)
SIGMA = 0.05
SAMPLING = Sampling(max_tokens=12)
LIMIT = 300  # seconds after which a wait that should end has failed

Folder = Callable[[str], Path]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As in the workers: the rounding of sums may depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray with room for several pools, and a GPU that nobody uses."""
    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init("local", num_cpus=8, num_gpus=1, **quiet)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="module")
def pool(cluster: str, tiny_folder: Folder) -> Iterator["ray_pool.RayPool"]:
    with load_workers(tiny_folder("qwen2"), workers=2, device="cpu") as workers:
        assert isinstance(workers, ray_pool.RayPool)
        yield workers


@pytest.fixture(scope="module")
def engine(tiny_folder: Folder) -> Engine:
    """The one engine that the pool is compared with; it gets every update that the pool gets."""
    return load_engine(tiny_folder("qwen2"), device="cpu")


def answers(engine: Engine, member: Member) -> list[list[Response]]:
    engine.set_member(member, SIGMA)
    return engine.sample(PROMPTS, 3, SAMPLING, seed=1)


def center(engine: Engine, item: object = None) -> str:
    """A fingerprint of the bits of the center."""
    engine.restore()
    digest = hashlib.sha256()
    for name, parameter in sorted(engine.parameters.items()):
        digest.update(name.encode() + parameter.numpy().tobytes())
    return digest.hexdigest()


def gathered(workers: Workers, work: Callable, items: Sequence) -> list:
    found = dict(workers.map(work, items))
    assert sorted(found) == list(range(len(items)))
    return [found[i] for i in range(len(items))]


def on_each(workers: Workers, work: Callable, folder: Path, count: int = 2) -> list:
    """Do it once in every worker: each waits until all have come."""
    here = str(folder / uuid.uuid4().hex)

    def wait_for_all(engine: Engine, item: int) -> tuple[int, object]:
        Path(f"{here}-{item}").touch()
        wait_until(lambda: all(Path(f"{here}-{i}").exists() for i in range(count)))
        return os.getpid(), work(engine, item)

    found = gathered(workers, wait_for_all, range(count))
    assert len({pid for pid, _ in found}) == count
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


# The same bits


def test_a_population_is_sampled_and_scored_to_the_bit(pool: Workers, engine: Engine) -> None:
    alone = [answers(engine, member) for member in MEMBERS]
    assert len({str(grid) for grid in alone}) == len(MEMBERS)
    assert gathered(pool, answers, MEMBERS) == alone

    def under_all_members(engine: Engine, grid: list[list[Response]]) -> np.ndarray:
        rows = []
        for member in MEMBERS:
            engine.set_member(member, SIGMA)
            scores = engine.score(PROMPTS, grid, SAMPLING)
            logits = engine.next_token_logits(PROMPTS, grid, SAMPLING)
            rows.append(np.concatenate([*itertools.chain(*scores), logits.double().numpy().ravel()]))
        return np.stack(rows)

    for ours, expected in zip(
        gathered(pool, under_all_members, alone), [under_all_members(engine, grid) for grid in alone], strict=True
    ):
        assert ours.shape == (len(MEMBERS), ours.shape[1]) and np.isfinite(ours).all()
        assert np.array_equal(ours, expected)


@pytest.mark.slow
def test_the_demo_checkpoint_to_the_bit_and_with_other_stop_tokens(cluster: str, demo_checkpoint) -> None:
    prompts = [demo_checkpoint.encode(f"What is {a} + 4?") for a in range(2)]
    first = answer_tokens(load_engine(demo_checkpoint, device="cpu"), prompts)
    checkpoint = dataclasses.replace(demo_checkpoint, stop_tokens=frozenset({first[2]}))

    def work(engine: Engine, member: Member) -> tuple:
        engine.set_member(member, 0.005)
        grid = engine.sample(prompts, 2, SAMPLING, seed=0)
        text = [engine.checkpoint.decode(response.tokens) for row in grid for response in row]
        return grid, text, [score.tolist() for row in engine.score(prompts, grid, SAMPLING) for score in row]

    with load_workers(checkpoint, workers=2, device="cpu") as workers:
        found = gathered(workers, work, MEMBERS[:3])
        assert workers.vocabulary == 49152
    engine = load_engine(checkpoint, device="cpu")
    assert len(answer_tokens(engine, prompts)) <= 3
    assert found == gathered(Local(engine), work, MEMBERS[:3]) and found[0] != found[1]


def answer_tokens(engine: Engine, prompts: list[list[int]]) -> tuple[int, ...]:
    return engine.sample(prompts[:1], 1, Sampling(temperature=0), seed=0)[0][0].tokens


# Lost workers


def test_a_worker_that_dies_in_mid_generation_changes_nothing(
    pool: "ray_pool.RayPool", engine: Engine, tmp_path: Path
) -> None:
    lost, died = pool.lost, tmp_path / "died"

    def work(engine: Engine, member: Member) -> list[list[Response]]:
        if member == MEMBERS[2] and not died.exists():
            passes = itertools.count(1)

            def die(*_: object) -> None:
                if next(passes) == 6:
                    died.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

            engine.model.register_forward_hook(die)
        return answers(engine, member)

    assert gathered(pool, work, MEMBERS) == [answers(engine, member) for member in MEMBERS]
    assert died.exists() and pool.lost == lost + 1


def test_a_worker_killed_from_outside_changes_nothing(pool: "ray_pool.RayPool", engine: Engine, tmp_path: Path) -> None:
    lost, victim = pool.lost, tmp_path / "victim"

    def work(engine: Engine, member: Member) -> list[list[Response]]:
        if member == MEMBERS[1] and not victim.exists():
            (tmp_path / "new").write_text(str(os.getpid()))
            (tmp_path / "new").replace(victim)
            while True:
                answers(engine, member)
        return answers(engine, member)

    def kill() -> None:
        wait_until(victim.exists)
        time.sleep(np.random.default_rng().uniform(0, 0.3))  # any moment will do
        os.kill(int(victim.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = gathered(pool, work, MEMBERS)
    killer.join()
    assert found == [answers(engine, member) for member in MEMBERS]
    assert pool.lost == lost + 1


def test_an_item_that_takes_every_worker_down_ends_in_one_line(
    pool: "ray_pool.RayPool", engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pool.retries == 3
    monkeypatch.setattr(pool, "retries", 1)

    def work(engine: Engine, item: int) -> int:
        if item == 1:
            (tmp_path / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with pytest.raises(EngineLost, match=r"^item 1 of 2 has lost 2 workers one after another$"):
        list(pool.map(work, range(2)))
    assert len(list(tmp_path.iterdir())) == 2  # tried twice, in two processes
    assert gathered(pool, answers, MEMBERS[:2]) == [answers(engine, member) for member in MEMBERS[:2]]


class Unpickled:
    """An option of the engine that does something to the process that receives it."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.does = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.does


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_workers_that_are_lost_while_loading_end_in_one_line(cluster: str, tiny_folder: Folder) -> None:
    checkpoint = load_checkpoint(tiny_folder("llama"))
    with pytest.raises(EngineLost, match=r"^2 workers were lost while they loaded "):
        ray_pool.RayPool(checkpoint, workers=1, retries=1, rows=Unpickled(die))
    with pytest.raises(EngineLost, match=r"^no worker has loaded the model in 0\.5 s$"):
        ray_pool.RayPool(checkpoint, workers=1, patience=0.5, rows=Unpickled(time.sleep, LIMIT))


# The center


def test_a_replaced_worker_has_the_center_of_the_others(
    pool: "ray_pool.RayPool", engine: Engine, tmp_path: Path
) -> None:
    before = center(engine)
    for update in ([(MEMBERS[0], 0.1), (MEMBERS[1], -0.03)], [(MEMBERS[4], 0.02)]):
        pool.apply_update(update)
        engine.apply_update(update)
    moved = center(engine)
    assert moved != before
    found = on_each(pool, center, tmp_path)
    assert [bits for _, bits in found] == [moved, moved]
    killed = {pid for pid, _ in found}
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    update = [(MEMBERS[5], -0.07)]
    pool.apply_update(update)
    engine.apply_update(update)
    found = on_each(pool, center, tmp_path)
    assert killed.isdisjoint(pid for pid, _ in found)
    assert [bits for _, bits in found] == [center(engine)] * 2 != [moved, moved]


def test_an_update_that_fails_moves_no_center(pool: "ray_pool.RayPool", engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"coefficient of .* is nan"):
        pool.apply_update([(MEMBERS[0], float("nan"))])

    def break_one(engine: Engine, item: int) -> None:
        def fail(*_: object) -> None:
            raise MemoryError("no room for the update")

        if item == 0:
            engine.apply_update = fail

    pids = {pid for pid, _ in on_each(pool, break_one, tmp_path)}
    with pytest.raises(MemoryError, match="no room"):
        pool.apply_update([(MEMBERS[0], 0.1)])

    def mend(engine: Engine, item: int) -> str:
        vars(engine).pop("apply_update", None)
        return center(engine)

    found = on_each(pool, mend, tmp_path)
    assert [bits for _, bits in found] == [center(engine)] * 2
    assert len(pids & {pid for pid, _ in found}) == 1  # who had moved was replaced
    update = [(MEMBERS[2], 0.01)]
    pool.apply_update(update)
    engine.apply_update(update)
    assert [bits for _, bits in on_each(pool, center, tmp_path)] == [center(engine)] * 2


def test_a_loaded_center_is_where_a_replaced_worker_begins(
    pool: "ray_pool.RayPool", engine: Engine, tiny_folder: Folder, tmp_path: Path
) -> None:
    """Also when the folder is gone, with a decay toward the checkpoint after it."""
    saved = tmp_path / "saved"
    pool.apply_update([(MEMBERS[3], 0.04)])
    engine.apply_update([(MEMBERS[3], 0.04)])
    save_center(pool, saved)
    expected = center(engine)
    pool.apply_update([(MEMBERS[1], 0.3)])
    pool.load_center(read_arrays(saved))
    engine.load_center(read_arrays(saved))
    shutil.rmtree(saved)
    assert center(engine) == expected  # what was saved is what the one engine has
    found = on_each(pool, center, tmp_path)
    assert [bits for _, bits in found] == [expected] * 2
    update = [(MEMBERS[0], 0.1), (StoredWeights.of(pool.checkpoint), 0.25)]
    pool.apply_update(update, keep=0.75)
    engine.apply_update(update, keep=0.75)
    assert len(pool._moves) == 2  # what came before the load is not done again
    os.kill(found[0][0], signal.SIGKILL)
    again = on_each(pool, center, tmp_path)
    assert found[0][0] not in {pid for pid, _ in again}
    assert [bits for _, bits in again] == [center(engine)] * 2 != [expected] * 2

    with pytest.raises(InputError, match="are not there"):
        pool.load_center({})
    assert [bits for _, bits in on_each(pool, center, tmp_path)] == [center(engine)] * 2
    pool.apply_update([(MEMBERS[2], 0.01)])
    engine.apply_update([(MEMBERS[2], 0.01)])
    assert [bits for _, bits in on_each(pool, center, tmp_path)] == [center(engine)] * 2


def test_restore_makes_every_engine_the_center(pool: Workers, engine: Engine, tmp_path: Path) -> None:
    def bits(engine: Engine, item: int) -> bytes:
        return b"".join(parameter.numpy().tobytes() for parameter in engine.parameters.values())

    engine.restore()
    expected = bits(engine, 0)
    on_each(pool, lambda engine, item: engine.set_member(MEMBERS[item], SIGMA), tmp_path)
    assert all(found != expected for _, found in on_each(pool, bits, tmp_path))
    pool.restore()
    assert all(found == expected for _, found in on_each(pool, bits, tmp_path))


# What work raises and returns


def test_an_input_error_comes_back_as_it_was_raised(pool: Workers, engine: Engine) -> None:
    def work(engine: Engine, sigma: float) -> None:
        engine.set_member(MEMBERS[0], sigma)

    with pytest.raises(InputError) as ours:
        list(pool.map(work, [0.1, -1.0]))
    with pytest.raises(InputError) as expected:
        work(engine, -1.0)
    assert type(ours.value) is InputError and str(ours.value) == str(expected.value)
    assert not hasattr(ours.value, "__notes__")


def test_another_error_says_where_in_the_worker(pool: Workers) -> None:
    def careless_work(engine: Engine, item: int) -> int:
        return {0: 1}[item]

    with pytest.raises(KeyError) as error:
        list(pool.map(careless_work, [0, 7]))
    assert type(error.value) is KeyError and error.value.args == (7,)
    assert "careless_work" in error.value.__notes__[0]


def test_a_result_that_cannot_travel_is_an_error(pool: "ray_pool.RayPool", engine: Engine, tmp_path: Path) -> None:
    lost, update = pool.lost, [(MEMBERS[1], 0.02)]
    pool.apply_update(update)
    engine.apply_update(update)
    with pytest.raises(TypeError, match="pickle"):
        list(pool.map(lambda engine, item: (i for i in range(3)), [0]))
    assert pool.lost == lost
    assert [bits for _, bits in on_each(pool, center, tmp_path)] == [center(engine)] * 2


def test_large_results_are_not_copied(pool: Workers) -> None:
    """They lie in the memory that both processes share, and are freed with their last user."""
    [array] = gathered(pool, lambda engine, item: np.arange(item), [2**22])
    assert np.array_equal(array, np.arange(2**22))
    assert not array.flags.owndata and not array.flags.writeable


def test_an_abandoned_map_leaves_the_pool_usable(pool: "ray_pool.RayPool", engine: Engine) -> None:
    index, first = next(pool.map(answers, MEMBERS))
    assert first == answers(engine, MEMBERS[index])
    update = [(MEMBERS[3], 0.01)]
    pool.apply_update(update)
    engine.apply_update(update)
    assert list(pool.map(answers, [])) == []
    two = zip(pool.map(answers, MEMBERS), pool.map(center, range(6)), strict=True)  # and two at a time
    for (index, found), (_, bits) in two:
        assert found == answers(engine, MEMBERS[index]) and bits == center(engine)


# Bad input


def test_bad_input_is_one_line_before_anything_starts(
    tiny_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, **__: object) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(ray_pool.RayPool, "__init__", started)
    monkeypatch.setattr("esth.models.workers.load_engine", started)
    for options, message in [
        ({"workers": 0}, "at least one worker is needed, not 0"),
        ({"threads": 0}, "at least one thread, not 0"),
        ({"engine": "tensorflow"}, "unknown engine 'tensorflow'"),
        ({"model": tmp_path / "none"}, "no model folder"),
        ({"model": tmp_path}, r"no config\.json"),
    ]:
        for workers in (1, 2):
            with pytest.raises(InputError, match=message) as error:
                load_workers(**{"model": tiny_folder("llama"), "workers": workers} | options)
            assert "\n" not in str(error.value)


def test_without_ray_one_line_says_what_to_install(tiny_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "esth.models.ray_pool")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"ray is not installed: pip install 'esth\[ray\]'"):
        load_workers(tiny_folder("llama"), workers=2)


def test_workers_that_ray_has_no_room_for(cluster: str, tiny_folder: Folder) -> None:
    checkpoint = load_checkpoint(tiny_folder("llama"))
    for options, message in [
        ({"workers": 3, "threads": 3}, "3 workers of 3 CPU each, but Ray has 8"),
        ({"workers": 2, "gpus": 0.75}, "2 workers of 0.75 GPU each, but Ray has 1"),
        ({"workers": 2}, "2 workers of 1 GPU each, but Ray has 1"),
        ({"workers": 0}, "no pool of 0 workers"),
    ]:
        with pytest.raises(InputError, match=message):
            ray_pool.RayPool(checkpoint, **options)


def test_a_machine_with_other_weights_is_refused(cluster: str, tiny_folder: Folder) -> None:
    checkpoint = dataclasses.replace(load_checkpoint(tiny_folder("llama")), fingerprint="0" * 64)
    with pytest.raises(InputError, match=r"other weights on .*: every machine needs the same checkpoint"):
        ray_pool.RayPool(checkpoint, workers=1, device="cpu")


# Processes

ALONE = """
import json, os, signal, sys
from pathlib import Path
import torch
from esth.models.workers import load_workers

folder, marker = sys.argv[1], Path(sys.argv[2])

def work(engine, item):
    if item == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item**2, torch.get_num_threads()

with load_workers(folder, workers=2, threads=2, device="cpu") as workers:
    print(json.dumps(sorted(workers.map(work, range(8)))))
try:
    list(workers.map(work, range(8)))
except Exception as error:
    print(error)
"""


def test_ray_is_quiet_and_leaves_nothing_behind(tiny_folder: Folder, tmp_path: Path) -> None:
    """A program that starts its own Ray, beside the one of these tests, and loses a worker."""
    mark = f"ESTH_TEST_MARK={uuid.uuid4().hex}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | dict([mark.split("=")])
    command = [sys.executable, "-W", "error", "-c", ALONE, str(tiny_folder("llama")), str(tmp_path / "marker")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment)
    assert done.returncode == 0, done.stderr
    squares, closed = done.stdout.splitlines()
    assert json.loads(squares) == [[i, [i * i, 2]] for i in range(8)]
    assert closed == "the pool has no workers: it is closed"
    assert done.stderr == ""

    def left() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (process / "environ").read_bytes():
                    found.append(process.name)
            except OSError:  # ended meanwhile, or another user's
                continue
        return found

    wait_until(lambda: not left())


FOREVER = """
import os, sys
from pathlib import Path
from esth.models import Sampling
from esth.models.workers import load_workers

folder, address, marker = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def work(engine, item):
    Path(f"{marker}-new").write_text(str(os.getpid()))
    Path(f"{marker}-new").replace(marker)
    while True:
        engine.sample([[5, 6]], 1, Sampling(), item)

with load_workers(folder, workers=1, address=address, device="cpu") as workers:
    list(workers.map(work, range(2)))
"""


def test_control_c_ends_the_workers_and_leaves_the_cluster(
    cluster: str, pool: Workers, engine: Engine, tiny_folder: Folder, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    command = [sys.executable, "-c", FOREVER, str(tiny_folder("llama")), cluster, str(marker)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as program:
        wait_until(lambda: marker.exists() or program.poll() is not None)
        assert program.poll() is None, program.stderr and program.stderr.read()
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=LIMIT)
    assert program.returncode != 0 and "KeyboardInterrupt" in errors
    worker = int(marker.read_text())
    wait_until(lambda: not alive(worker))
    assert gathered(pool, answers, MEMBERS[:2]) == [answers(engine, member) for member in MEMBERS[:2]]

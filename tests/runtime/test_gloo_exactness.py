"""The same programs on real gloo processes: exact, started and stopped cleanly, never hanging."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from hexisolve.errors import InstanceError, RuntimeMismatchError, UnsupportedPlanError
from hexisolve.program.compile import compile_plan
from hexisolve.program.rank_program import Programs
from hexisolve.runtime.corpus import Batch, random_batch
from hexisolve.runtime.interpreter import RunSettings
from hexisolve.runtime.launch import StepRecord, train
from hexisolve.runtime.processes import Job, StepDone, run_local
from hexisolve.runtime.verify import FixedBatch, verify_processes
from tests.plans import CASES, TWO_STAGES, make, tiny_model
from tests.runtime.exactness import RING_BLOCKS, assert_exact, replicas

pytestmark = [pytest.mark.dist, pytest.mark.timeout(120)]

TIMEOUT_S = 30.0


@pytest.fixture(autouse=True)
def _no_process_is_left() -> object:
    """Every test ends without children."""
    yield
    left = multiprocessing.active_children()
    for process in left:
        process.kill()
    assert not left


@pytest.mark.parametrize(
    "name",
    [
        "two_stages",
        "three_feed_two",
        "tiny_shards",
        "split_kv_group",
        "idle_rank",
        "packed_documents",
        "ring_of_groups",
        "chunks_1",
        "chunks_2",
        "chunks_3",
        "recompute_layer",
        "recompute_full",
        "zero_1_tied",
    ],
)
def test_hand_written_plan_equals_one_process(name: str) -> None:
    assert_exact(verify_processes(*CASES[name](), ring_blocks=RING_BLOCKS, timeout_s=TIMEOUT_S))


def test_unlike_replicas() -> None:
    case = replicas(1, is_tied=True, zero=1)
    assert_exact(verify_processes(*case, ring_blocks=RING_BLOCKS, timeout_s=TIMEOUT_S))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_hand_written_plan_with_all_ring_blocks(name: str) -> None:
    instance, plan = CASES[name]()
    if name.startswith("zero_3"):
        with pytest.raises(UnsupportedPlanError, match="ZeRO-3"):
            verify_processes(instance, plan, timeout_s=TIMEOUT_S)
    else:
        assert_exact(verify_processes(instance, plan, timeout_s=TIMEOUT_S))


@pytest.mark.slow
@pytest.mark.parametrize("num_chunks", [1, 2, 3, 4])
def test_chunk_counts_around_three_stages(num_chunks: int) -> None:
    stages = [((0, 1), [[(2, (0, 4)), (1, (4, 6))]]), ((1, 3), [[(1, (0, 6))]]),
              ((3, 4), [[(3, (0, 6))], [(1, (0, 6))]])]  # fmt: skip
    lengths = [9 + 4 * idx for idx in range(num_chunks)]
    case = make(stages, [[idx] for idx in range(num_chunks)], lengths)
    assert_exact(verify_processes(*case, ring_blocks=RING_BLOCKS, timeout_s=TIMEOUT_S))


def test_zero_3_is_refused_by_name_before_anything_starts() -> None:
    with pytest.raises(UnsupportedPlanError, match=r"ZeRO-3 \(stage 0 of replica 0"):
        verify_processes(*CASES["zero_3"]())


def test_other_than_one_process_per_rank_is_refused() -> None:
    with pytest.raises(RuntimeMismatchError, match="4 ranks, 3 processes were started"):
        train(*CASES["two_stages"](), num_steps=1, num_processes=3)


def job(
    programs: Programs, batches: object, num_steps: int = 1, timeout_s: float = TIMEOUT_S
) -> Job:
    return Job(
        programs=programs, settings=RunSettings(dtype=torch.float64), batches=batches,  # type: ignore[arg-type]
        num_steps=num_steps, timeout_s=timeout_s,
    )  # fmt: skip


def small_programs() -> Programs:
    return compile_plan(*make(TWO_STAGES, [[0], [1]], [13, 9]), ring_blocks=2)


@dataclass(frozen=True)
class Sabotage:
    """Batches that make one process do something to itself before step 2."""

    sequences: Batch
    rank: int
    deed: str

    def batch(self, step: int) -> Batch:
        if step == 2 and f"rank {self.rank}" in multiprocessing.current_process().name:
            if self.deed == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.deed == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                raise InstanceError.single("data", "", "the disk is gone")
        return self.sequences


@pytest.mark.parametrize(
    ("deed", "timeout_s", "words"),
    [
        ("kill", TIMEOUT_S, r"rank 2 \(.*\) was ended by signal SIGKILL"),
        ("stop", 6.0, r"rank 2 \(.*\) did not answer within 6 s"),
        ("raise", TIMEOUT_S, r"rank 2 \(.*\): data: the disk is gone"),
    ],
)
def test_lost_rank_ends_the_job_in_time_and_is_named(
    deed: str, timeout_s: float, words: str
) -> None:
    programs = small_programs()
    batches = Sabotage(random_batch(programs.sequence_lengths, 64, 0), 2, deed)
    steps: list[StepDone] = []
    begun_s = time.monotonic()
    with pytest.raises(RuntimeMismatchError, match=words):
        run_local(job(programs, batches, num_steps=5, timeout_s=timeout_s), steps.append)
    assert time.monotonic() - begun_s < timeout_s + 10.0
    assert [step.step for step in steps] == [0, 1]


@pytest.mark.slow
def test_killing_the_starter_leaves_no_rank_behind(repository: Path) -> None:
    script = (
        "from tests.plans import *\n"
        "from hexisolve.runtime.launch import train\n"
        "model = ModelSpec.from_config({**tiny_model(1).config, 'vocab_size': 256}, 'bytes')\n"
        "case = make([((0, 1), [[(2, (0, 4)), (1, (4, 6))]])], [[0]], [64], model=model)\n"
        "train(*case, num_steps=10**6, on_step=lambda r: print(r.step, flush=True))\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script], cwd=repository, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    assert starter.stdout.readline() == "0\n"
    children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
    assert len(children) == 2
    starter.kill()
    starter.wait()
    deadline = time.monotonic() + 10.0
    while any(is_running(int(child)) for child in children):
        assert time.monotonic() < deadline, "ranks outlive the process that started them"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    """Whether a process exists and is not only waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def test_ranks_with_different_programs_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = small_programs()
    own_digest = Programs.digest.func  # type: ignore[attr-defined]

    def digest(self: Programs) -> str:
        found: str = own_digest(self)
        is_one = multiprocessing.current_process().name.endswith("rank 1")
        return found[::-1] if is_one else found

    monkeypatch.setattr(Programs, "digest", property(digest))
    batches = FixedBatch(random_batch(programs.sequence_lengths, 64, 0))
    with pytest.raises(RuntimeMismatchError, match="rank 1 compiled other programs"):
        run_local(job(programs, batches))


def test_broken_collective_is_found_before_step_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """An all-to-all that drops the last element it should deliver."""
    import torch.distributed as dist

    original = dist.all_to_all_single

    def broken(output: torch.Tensor, *rest: object, **options: object) -> object:
        done = original(output, *rest, **options)  # type: ignore[arg-type]
        if output.numel():
            output[-1] = 0
        return done

    monkeypatch.setattr(dist, "all_to_all_single", broken)
    programs = small_programs()
    batches = FixedBatch(random_batch(programs.sequence_lengths, 64, 0))
    steps: list[StepDone] = []
    with pytest.raises(RuntimeMismatchError, match="self-test of all_to_all_single"):
        run_local(job(programs, batches), steps.append)
    assert not steps


def test_training_beside_one_process() -> None:
    """float32, ZeRO-1, recompute, two stages: loss falls and equals one process step by step."""
    model = replace(tiny_model(3, hidden_size=48, head_dim=8), name="small")
    model = type(model).from_config({**model.config, "vocab_size": 256}, "small")
    stages = [((0, 2), [[(5, (0, 4)), (2, (4, 6))]]), ((2, 3), [[(4, (0, 6))], [(3, (0, 6))]])]
    case = make(stages, [[0], [1]], [90, 70], model=model, zero=1, recompute="layer",
                state_shares=[[1, 2], [3, 1]], dtype="fp32")  # fmt: skip
    records: list[StepRecord] = []
    summary = train(
        *case, num_steps=6, learning_rate=3e-3, verify=True, timeout_s=TIMEOUT_S,
        on_step=records.append,
    )  # fmt: skip
    assert tuple(records) == summary.steps
    assert summary.num_steps == 6
    assert summary.last_loss < summary.first_loss - 0.5
    assert summary.max_relative_difference is not None
    assert summary.max_relative_difference < 1e-4
    assert summary.gradients is not None
    assert_exact(summary.gradients)


def test_training_on_a_folder_of_text(tmp_path: Path) -> None:
    folder = tmp_path / "a folder with a space and an é"
    folder.mkdir()
    (folder / "one.txt").write_text("to be or not to be, that is the question. " * 20)
    model = type(tiny_model()).from_config({**tiny_model(1).config, "vocab_size": 256}, "bytes")
    case = make([((0, 1), [[(2, (0, 4)), (1, (4, 6))]])], [[0]], [64], model=model, dtype="fp32")
    summary = train(*case, data=folder, num_steps=10, learning_rate=1e-2, timeout_s=TIMEOUT_S)
    assert summary.last_loss < summary.first_loss - 1.0


@pytest.mark.slow
def test_spawned_processes_are_exact_too() -> None:
    programs = small_programs()
    settings = RunSettings(dtype=torch.float64, style="probe", keeps_gradients=True)
    batches = FixedBatch(random_batch(programs.sequence_lengths, 64, 0))
    losses = []
    for method in ("fork", "spawn"):
        steps: list[StepDone] = []
        run_local(
            Job(programs=programs, settings=settings, batches=batches, num_steps=1,
                timeout_s=TIMEOUT_S),
            steps.append, start_method=method,  # type: ignore[arg-type]
        )  # fmt: skip
        losses.append(steps[0].loss)
    assert losses[0] == losses[1]

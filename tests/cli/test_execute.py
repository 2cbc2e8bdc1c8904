"""`simulate`, `verify` and `run`: the same programs played, proved and executed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hexisolve.data.model_spec import llama_like
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.io import read_plan, write_plan
from hexisolve.program.clock import simulate
from tests.plans import make, ring_of_groups, two_stages

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def byte_plan_path(tmp_path: Path) -> Path:
    """The plan of `plan_path` for a vocabulary that has room for bytes."""
    path = tmp_path / "bytes.json"
    model = llama_like("bytes", 24, 4, 6, 3, 48, 256, head_dim=4)
    write_plan(path, *two_stages(model=model))
    return path


def test_simulate_json_is_the_clock_beside_evaluate(shell, plan_path: Path) -> None:
    document = shell("simulate", plan_path, "--json").json
    file = read_plan(plan_path)
    assert document["step_time_s"] == simulate(file.instance, file.plan).step_time_s
    assert document["evaluated_step_time_s"] == evaluate(file.instance, file.plan).step_time_s
    assert len(document["devices"]) == 4
    for stage in document["stages"]:
        assert {entry["operation"] for entry in stage["operations"]} == {
            "F0", "F1", "F2", "B0", "B1", "B2"
        }  # fmt: skip


def test_simulate_draws_every_stage_and_says_why(shell, plan_path: Path) -> None:
    text = shell("simulate", plan_path).out
    for word in ("stage 0 |", "stage 1 |", "tokens/s", "evaluate", "clock", "idle", "exchange"):
        assert word in text


def test_simulate_writes_a_trace(shell, plan_path: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    assert shell("simulate", plan_path, "--trace", trace).code == 0
    assert json.loads(trace.read_text())["traceEvents"]


def test_verify_prints_the_largest_difference(shell, plan_path: Path) -> None:
    outcome = shell("verify", plan_path)
    assert outcome.code == 0
    for word in ("4 ranks", "transfers", "largest difference", "exact"):
        assert word in outcome.out


def test_verify_json(shell, plan_path: Path) -> None:
    document = shell("verify", plan_path, "--json").json
    assert document["exact"] is True
    assert document["problems"] == []
    assert 0 <= document["max_gradient_difference"] <= 1e-10
    assert document["num_ranks"] == 4
    assert any("layers" in line for line in document["reductions"])


def test_verify_knows_every_reduction_of_the_miniature() -> None:
    from hexisolve.commands.verify import REDUCTIONS
    from hexisolve.program import miniature

    assert REDUCTIONS == miniature.REDUCTIONS


def test_verify_can_keep_what_it_would_reduce(shell, plan_path: Path) -> None:
    document = shell(
        "verify", plan_path, "--json", "--keep", "tokens,widths,layers,chunks,blocks"
    ).json
    assert document["exact"] is True
    assert document["reductions"] == []
    outcome = shell("verify", plan_path, "--keep", "heads")
    assert outcome.code == 2
    assert "heads" in outcome.err


def test_verify_tells_when_it_is_not_exact(
    shell, plan_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexisolve.commands.verify.MAX_GRADIENT_DIFFERENCE", -1.0)
    outcome = shell("verify", plan_path)
    assert outcome.code == 1
    assert "NOT EXACT" in outcome.out


def test_run_refuses_another_number_of_processes(shell, byte_plan_path: Path) -> None:
    outcome = shell("run", byte_plan_path, "--processes", "3")
    assert outcome.code == 2
    assert outcome.out == ""
    for word in ("--processes", "3", "4 ranks"):
        assert word in outcome.err


def test_run_refuses_data_that_is_none(shell, byte_plan_path: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for folder in (empty, tmp_path / "missing"):
        outcome = shell("run", byte_plan_path, "--data", folder)
        assert outcome.code == 2
        assert str(folder) in outcome.err


def test_run_refuses_a_vocabulary_without_room_for_bytes(shell, plan_path: Path) -> None:
    outcome = shell("run", plan_path)
    assert outcome.code == 2
    assert "vocab" in outcome.err


def test_run_refuses_zero_3_by_name(shell, tmp_path: Path) -> None:
    path = tmp_path / "zero.json"
    model = llama_like("bytes", 24, 4, 6, 3, 48, 256, head_dim=4)
    write_plan(path, *ring_of_groups(model=model, zero=3))
    outcome = shell("run", path)
    assert outcome.code == 2
    assert "ZeRO-3" in outcome.err


@pytest.mark.dist
def test_run_json_is_one_line_per_step_and_a_summary(shell, byte_plan_path: Path) -> None:
    outcome = shell("run", byte_plan_path, "--steps", "2", "--verify", "--json")
    assert outcome.code == 0
    *steps, summary = [json.loads(line) for line in outcome.out.splitlines()]
    assert [entry["step"] for entry in steps] == [0, 1]
    for entry in steps:
        assert {"loss", "tokens", "tokens_per_s", "step_time_s", "predicted_step_time_s"} <= set(
            entry
        )
        assert entry["relative_difference"] <= 1e-4
    assert summary["summary"] is True
    assert summary["max_gradient_difference"] <= 1e-10


@pytest.mark.dist
def test_run_for_people(shell, byte_plan_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "some téxt"
    folder.mkdir()
    (folder / "a b.txt").write_text("one two three four five six seven " * 20)
    outcome = shell("run", byte_plan_path, "--steps", "1", "--data", folder, "--verify")
    assert outcome.code == 0
    for word in ("one process", "difference", "tokens/s", "largest gradient difference"):
        assert word in outcome.out


@pytest.mark.dist
@pytest.mark.timeout(120)
def test_both_ways_to_start_print_the_same_keys(shell, tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    model = llama_like("bytes", 24, 4, 6, 3, 48, 256, head_dim=4)
    write_plan(path, *make([((0, 4), [[(3, (0, 4)), (2, (4, 6))]])], [[0], [1]], [30, 20],
                           model=model))  # fmt: skip
    local = shell("run", path, "--steps", "2", "--json")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1",
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        command = [sys.executable, "-m", "hexisolve", "run", str(path), "--steps", "2", "--json"]
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment))
    texts = [process.communicate(timeout=100)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert texts[1] == ""
    ours, theirs = (
        [json.loads(line) for line in text.splitlines()] for text in (local.out, texts[0])
    )
    assert [list(line) for line in ours] == [list(line) for line in theirs]
    assert "predicted_step_time_s" in theirs[0]
    same = ("predicted_step_time_s", "num_ranks", "num_parameters", "losses", "loss", "tokens")
    for one, other in zip(ours, theirs, strict=True):
        for key in set(same) & one.keys():
            assert one[key] == other[key]


@pytest.mark.parametrize(("options", "words"), [
    (["--verify"], ["--verify", "torchrun"]),
    ([], ["WORLD_SIZE", "2", "4 ranks"]),
])  # fmt: skip
def test_a_rank_that_does_not_fit_is_bad_input(
    shell, byte_plan_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str],
    words: list[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = shell("run", byte_plan_path, *options)
    assert outcome.code == 2
    assert outcome.out == ""
    for word in words:
        assert word in outcome.err


def test_a_model_larger_than_this_machine_is_refused(
    shell, byte_plan_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexisolve.commands.run.machine_bytes", lambda: 1000)
    outcome = shell("run", byte_plan_path)
    assert outcome.code == 2
    assert outcome.out == ""
    for word in ("1000 B", "torchrun", "verify PLAN"):
        assert word in outcome.err


def test_this_machine_has_memory() -> None:
    from hexisolve.commands.run import machine_bytes

    found = machine_bytes()
    assert found is None or found > 2**20


def test_cuda_needs_torchrun(shell, byte_plan_path: Path) -> None:
    outcome = shell("run", byte_plan_path, "--device", "cuda")
    assert outcome.code == 2
    assert "torchrun" in outcome.err


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("num_processes", "code"), [(4, 0), (2, 1)])
def test_run_under_torchrun(byte_plan_path: Path, num_processes: int, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_processes),
         "-m", "hexisolve", "run", str(byte_plan_path), "--steps", "2", "--json"],
        capture_output=True, text=True, timeout=170,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == code
    if code == 0:
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert [entry["step"] for entry in lines[:2]] == [0, 1]
        assert len(lines) == 3
    else:
        assert "the plan has 4 ranks" in done.stderr

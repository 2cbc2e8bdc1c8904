"""The entry for torchrun: one process per rank, started by torch's own launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hexisolve.data.model_spec import ModelSpec
from hexisolve.plan.io import write_plan
from hexisolve.runtime.launch import train
from tests.plans import TWO_STAGES, make, tiny_model

MODEL = ModelSpec.from_config({**tiny_model(4).config, "vocab_size": 256}, "bytes")


def plan_file(folder: Path) -> Path:
    path = folder / "plän with a space.json"
    write_plan(path, *make(TWO_STAGES, [[0], [1]], [40, 30], model=MODEL, dtype="fp32"))
    return path


def torchrun(num_processes: int, *arguments: str, repository: Path) -> subprocess.CompletedProcess:  # type: ignore[type-arg]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        f"--nproc-per-node={num_processes}", "-m", "hexisolve", "run", "--json", *arguments,
    ]  # fmt: skip
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": str(repository),
    }  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)


@pytest.mark.slow
@pytest.mark.dist
def test_torchrun_trains_like_local_processes(tmp_path: Path, repository: Path) -> None:
    path = plan_file(tmp_path)
    done = torchrun(4, str(path), "--steps", "3", repository=repository)
    assert done.returncode == 0, done.stderr
    *steps, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert summary["num_ranks"] == 4
    case = make(TWO_STAGES, [[0], [1]], [40, 30], model=MODEL, dtype="fp32")
    local = train(*case, num_steps=3)
    assert [step["loss"] for step in steps] == [record.loss for record in local.steps]


@pytest.mark.slow
@pytest.mark.dist
def test_fewer_processes_than_ranks_is_a_clear_error(tmp_path: Path, repository: Path) -> None:
    done = torchrun(2, str(plan_file(tmp_path)), "--steps", "1", repository=repository)
    assert done.returncode != 0
    assert "WORLD_SIZE: the plan has 4 ranks (found 2)" in done.stderr
    assert not done.stdout

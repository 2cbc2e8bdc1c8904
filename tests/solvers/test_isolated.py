"""Libraries that hang, crash and chatter: a false `pulp` takes the place of the real one."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import llama_like
from hexisolve.data.workload import Workload
from hexisolve.errors import BackendError
from hexisolve.solvers import isolated
from hexisolve.solvers.backends import solve_linear
from hexisolve.solvers.linear_solution import LinearSolution, Termination
from hexisolve.solvers.solve import solve
from tests.solvers.random_models import random_model

pytestmark = pytest.mark.dist

REPOSITORY = Path(__file__).resolve().parents[2]
# Writes who it is and whom it started, then ignores every limit.
HANG = """
import os, pathlib, subprocess, time
other = subprocess.Popen(["sleep", "600"])
out = pathlib.Path({folder!r}) / "pids.new"
out.write_text(f"{{os.getpid()}} {{other.pid}}")
out.rename(out.with_name("pids"))
time.sleep(600)
"""
CRASH = """
import os, signal
os.write(1, b"a last word")
os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture
def false_pulp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of which `pulp.py` is imported instead of the library, in other processes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(isolated, "GRACE_S", 0.5)
    return tmp_path


def wait_for_pids(folder: Path) -> list[int]:
    deadline = time.monotonic() + 60
    while not (folder / "pids").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(word) for word in (folder / "pids").read_text().split()]


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while alive := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_the_grace_is_five_seconds() -> None:
    # Case 42.
    assert isolated.GRACE_S == 5.0


def test_a_library_that_ignores_its_limit_is_ended_with_all_it_started(
    false_pulp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Case 42.
    (false_pulp / "pulp.py").write_text(HANG.format(folder=str(false_pulp)))
    begun = time.monotonic()
    found = solve_linear(random_model(2), "cbc", time_limit_s=2.0)
    assert 2.4 < time.monotonic() - begun < 6.0
    assert found == LinearSolution(Termination.UNKNOWN, None, None)
    assert "was ended" in caplog.text
    assert_gone(wait_for_pids(false_pulp))


def test_the_start_outlives_a_library_that_was_ended(false_pulp: Path) -> None:
    start = solve_linear(random_model(2), "highs", time_limit_s=30).values
    (false_pulp / "pulp.py").write_text(HANG.format(folder=str(false_pulp)))
    found = solve_linear(random_model(2), "cbc", time_limit_s=0.5, start=start)
    assert found == LinearSolution(Termination.FEASIBLE, start, None)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_its_caller(ending: signal.Signals, tmp_path: Path) -> None:
    # Case 42: Ctrl-C leaves no child process, nor does any other end.
    (tmp_path / "pulp.py").write_text(HANG.format(folder=str(tmp_path)))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    caller = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from hexisolve.solvers.backends import solve_linear\n"
            "from tests.solvers.random_models import random_model\n"
            "solve_linear(random_model(2), 'cbc', time_limit_s=300)\n",
        ],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}",
            "TMPDIR": str(scratch),
        },
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    pids = wait_for_pids(tmp_path)
    assert all(_is_alive(pid) for pid in pids)
    caller.send_signal(ending)
    assert caller.wait(timeout=30) != 0
    assert_gone(pids)
    assert list(scratch.iterdir()) == []


def test_a_crash_is_an_error_with_the_signal_and_the_last_words(false_pulp: Path) -> None:
    (false_pulp / "pulp.py").write_text(CRASH)
    with pytest.raises(BackendError, match=r"signal 11.*a last word"):
        solve_linear(random_model(2), "cbc", time_limit_s=30)


def test_a_fault_in_the_worker_is_an_error_with_its_traceback(false_pulp: Path) -> None:
    (false_pulp / "pulp.py").write_text("1 / 0\n")
    with pytest.raises(BackendError, match="ZeroDivisionError"):
        solve_linear(random_model(2), "cbc", time_limit_s=30)


def problem() -> Instance:
    model = llama_like("small", 256, 4, 8, 4, 512, 1000)
    return Instance(
        Cluster.read("mixed-16"), model, Workload(context_tokens=8192, batch_sequences=4)
    )


@pytest.mark.parametrize("kind", ["hang", "crash"])
def test_a_plan_is_not_lost_with_its_backend(
    kind: str, false_pulp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Case 42: the best plan so far.
    code = HANG.format(folder=str(false_pulp)) if kind == "hang" else CRASH
    (false_pulp / "pulp.py").write_text(code)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING):
        result = solve(problem(), backend="cbc", time_limit_s=5.0, relative_gap=0.0)
    assert time.monotonic() - begun < 5.0 + 4.0
    assert result.plan is not None
    assert result.backend != "cbc"
    assert ("was ended" if kind == "hang" else "goes on alone") in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "cbc",
        pytest.param("highs", marks=pytest.mark.slow),
        pytest.param("mathopt-gscip", marks=pytest.mark.slow),
    ],
)
def test_solve_proves_with_other_backends(name: str) -> None:
    by_dp = solve(problem(), backend="dp", time_limit_s=60, relative_gap=0.05)
    result = solve(problem(), backend=name, time_limit_s=60, relative_gap=0.05)
    assert result.bound_s is not None
    assert by_dp.objective_s is not None
    assert result.objective_s is not None
    assert result.bound_s <= by_dp.objective_s
    assert by_dp.bound_s <= result.objective_s

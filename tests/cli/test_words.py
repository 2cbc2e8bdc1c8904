"""What results are called in words."""

from __future__ import annotations

import io

import pytest

from hexisolve.commands.search import Answer, result_text
from hexisolve.commands.shell import Shell
from hexisolve.commands.training import StepPrinter
from hexisolve.runtime.records import StepRecord, TrainingSummary
from hexisolve.solvers.result import Limit, Result, Status
from tests.plans import two_stages


def _answer(limit: Limit | None, wall_s: float) -> Answer:
    instance, plan = two_stages()
    status = Status.OPTIMAL if limit is None else Status.FEASIBLE
    result = Result(status, limit, plan, 2.0, 1.9, wall_s, "dp", "", ())
    return Answer(instance, result, {}, time_limit_s=10.0)


@pytest.mark.parametrize(
    ("limit", "wall_s", "words"),
    [
        (None, 1.0, "optimal in 1.00 s with dp\n"),
        ("time", 10.1, "feasible in 10.10 s with dp, stopped by the time limit\n"),
        (
            "methods",
            1.6,
            "feasible in 1.60 s with dp, every method has ended, the gap stays open\n",
        ),
        ("interrupted", 1.6, "feasible in 1.60 s with dp, interrupted\n"),
        ("memory", 1.6, "feasible in 1.60 s with dp, stopped by the memory limit\n"),
    ],
)
def test_why_the_search_ended(limit: Limit | None, wall_s: float, words: str) -> None:
    assert result_text(_answer(limit, wall_s)).startswith(words)


def test_a_run_ends_with_its_step_time_beside_the_predicted_one() -> None:
    out = io.StringIO()
    printer = StepPrinter(Shell(out), 0.5, verifies=False)
    steps = tuple(StepRecord(idx, 5.0 - idx, None, 100, 50.0, 2.0) for idx in range(3))
    for record in steps:
        printer(record)
    printer.close(TrainingSummary(steps, 4, 9, 6.0))
    assert "step time 2 s; the cost model says 500 ms on the cluster of the plan" in out.getvalue()

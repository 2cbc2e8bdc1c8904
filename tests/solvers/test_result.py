from __future__ import annotations

import pytest

from hexisolve.errors import NoPlanError
from hexisolve.plan.plan import BatchPlan, Layout, Plan
from hexisolve.solvers.result import Result, Status

PLAN = Plan(Layout(()), BatchPlan(()))


def make(**changes: object) -> Result:
    values: dict = {
        "status": Status.OPTIMAL, "limit": None, "plan": PLAN, "objective_s": 2.0, "bound_s": 1.9,
        "wall_s": 0.5, "backend": "dp",
    }  # fmt: skip
    return Result(**(values | changes))


def test_gap_is_relative_to_the_objective() -> None:
    assert make().gap == pytest.approx(0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {"plan": None},
        {"objective_s": None},
        {"limit": "time"},
        {"status": Status.FEASIBLE},
        {"bound_s": None},
        {"bound_s": 2.1},
        {"bound_s": float("nan")},
        {"objective_s": float("inf")},
        {"status": Status.INFEASIBLE, "plan": None, "objective_s": None},
        {"status": Status.NO_SOLUTION, "plan": None, "objective_s": None},
    ],
)
def test_contradictions_are_refused(changes: dict) -> None:
    with pytest.raises(ValueError, match=r"plan|limit|bound|finite"):
        make(**changes)


def test_no_plan_says_why() -> None:
    result = make(status=Status.INFEASIBLE, plan=None, objective_s=None, bound_s=None,
                  diagnosis="memory: too small")  # fmt: skip
    with pytest.raises(NoPlanError, match="too small"):
        result.require_plan()
    assert "infeasible" in str(result)
    assert result.gap is None


def test_prints_itself() -> None:
    assert "gap 5.00%" in str(make())

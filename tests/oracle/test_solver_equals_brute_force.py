"""The exact solver against the price of every plan: the same optimum, or both find none."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from hexisolve.data.instance import Instance
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.solvers.result import Status
from hexisolve.solvers.solve import solve
from tests.oracle.brute_force import brute_force
from tests.oracle.instances import tiny_instances

TOLERANCE = 1e-6
DRAWS = settings(
    max_examples=40, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def check_solver(instance: Instance) -> None:
    """`solve` with gap 0 finds what brute force finds, and its bound is no higher."""
    best_s, best, number = brute_force(instance)
    result = solve(instance, relative_gap=0.0, time_limit_s=60)
    story = (
        f"{number} plans, best {best_s!r} s; solver {result.status} {result.objective_s!r} s, "
        f"bound {result.bound_s!r} s\n{result.diagnosis}\nbest plan:\n{best}\n"
        f"solver's plan:\n{result.plan}\n{json.dumps(instance.to_dict())}"
    )
    if best is None:
        assert result.status is Status.INFEASIBLE, story
        assert result.plan is None, story
        return
    assert result.status is Status.OPTIMAL, story
    assert result.plan is not None, story
    assert result.objective_s == pytest.approx(best_s, rel=TOLERANCE), story
    assert result.bound_s is not None, story
    assert result.bound_s <= best_s * (1 + TOLERANCE), story
    assert result.bound_s == pytest.approx(best_s, rel=TOLERANCE), story
    assert not check_plan(instance, result.plan), story
    assert evaluate(instance, result.plan).step_time_s == result.objective_s, story


@DRAWS
@given(tiny_instances(most_plans=3_000))
def test_solver_equals_brute_force(instance: Instance) -> None:
    check_solver(instance)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(DRAWS, max_examples=300)
@given(tiny_instances(most_plans=10_000))
def test_solver_equals_brute_force_on_many_instances(instance: Instance) -> None:
    check_solver(instance)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(DRAWS, max_examples=12)
@given(tiny_instances(most_plans=100_000, devices=(3, 4, 4)))
def test_solver_equals_brute_force_on_large_spaces(instance: Instance) -> None:
    check_solver(instance)

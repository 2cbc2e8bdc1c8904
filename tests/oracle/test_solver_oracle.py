"""The solver with gap 0 against every legal plan of tiny instances."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.solvers.result import Status
from hexisolve.solvers.solve import solve
from tests.oracle.enumerate_plans import best_plan
from tests.oracle.tiny_instances import LARGER_SHAPES, SHAPES, draw

NUM_DEFAULT, NUM_SLOW = 40, 300


def assert_equal_to_enumeration(instance, most_plans: int) -> None:
    truth = best_plan(instance, most_plans)
    assume(truth is not None)
    least_s, plan, _ = truth
    result = solve(instance, time_limit_s=60, relative_gap=0.0)
    if plan is None:
        assert result.status is Status.INFEASIBLE
        assert "memory" in result.diagnosis
        return
    assert result.status is Status.OPTIMAL
    assert result.plan is not None
    assert check_plan(instance, result.plan) == []
    assert evaluate(instance, result.plan).step_time_s == result.objective_s
    assert result.objective_s == pytest.approx(least_s, rel=1e-6)
    assert result.bound_s <= least_s * (1 + 1e-9)


@settings(
    max_examples=NUM_DEFAULT, derandomize=True, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.randoms(use_true_random=False))
def test_equals_the_enumeration_of_all_plans(source) -> None:
    assert_equal_to_enumeration(draw(source, SHAPES), 1_100)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(
    max_examples=NUM_SLOW, derandomize=True, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.randoms(use_true_random=False))
def test_equals_the_enumeration_of_all_plans_on_larger_instances(source) -> None:
    assert_equal_to_enumeration(draw(source, (*SHAPES, *LARGER_SHAPES)), 5_000)

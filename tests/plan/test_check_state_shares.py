"""A rank may hold no share of the model states: checker, price, programs and executor agree."""

from __future__ import annotations

import pytest

from hexisolve.data.instance import Instance
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import Plan
from hexisolve.program.clock import simulate
from hexisolve.program.compile import compile_plan
from hexisolve.program.match import match
from hexisolve.runtime.verify import verify_virtual
from tests.plans import ring_of_groups

EMPTY_RANK = 2
SHARES = [[3, 1, 0, 2], [1]]
SHARDED = [(1, "step"), (3, "step"), (3, "chunk")]


def _plan(zero: int, gradients: str, shares: list[list[int]]) -> tuple[Instance, Plan]:
    return ring_of_groups(zero=zero, zero3_gradients=gradients, state_shares=shares)


@pytest.mark.parametrize(("zero", "gradients"), SHARDED)
def test_an_empty_share_of_the_states_is_legal_everywhere(zero: int, gradients: str) -> None:
    instance, plan = _plan(zero, gradients, SHARES)
    assert check_plan(instance, plan) == []
    assert evaluate(instance, plan).step_time_s > 0
    assert match(compile_plan(instance, plan)).ok
    assert simulate(instance, plan).step_time_s > 0
    assert verify_virtual(instance, plan).max_gradient_difference <= 1e-10


@pytest.mark.parametrize(
    ("zero", "bytes_per_parameter"),
    [(1, 8 + 4), (3, 4)],
    ids=["zero-1: fp64 weights and gradients", "zero-3: gradients until the step's end"],
)
def test_a_rank_without_a_share_holds_only_what_nobody_shares(
    zero: int, bytes_per_parameter: int
) -> None:
    instance, plan = _plan(zero, "step", SHARES)
    first = plan.layout.replicas[0].stages[0]
    held = sum(layer.parameters for layer in instance.model.layers[slice(*first.layers)])
    held += instance.model.embedding_parameters
    states = evaluate(instance, plan).devices[EMPTY_RANK].memory.states
    assert states == held * bytes_per_parameter


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_somebody_must_hold_the_states(zero: int) -> None:
    instance, plan = _plan(zero, "step", [[0, 0, 0, 0], [1]])
    (violation,) = check_plan(instance, plan)
    assert violation.rule == "state-shares"
    assert "all 0" in violation.message

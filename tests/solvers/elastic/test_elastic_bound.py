"""No batch plan is below the bound, whoever made it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexisolve.data.workload import Workload
from hexisolve.errors import NoPlanError
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import Layout, Replica
from hexisolve.solvers.elastic.bound import batch_bound_s
from hexisolve.solvers.elastic.heuristic import heuristic_batch
from tests.solvers.elastic.elastic_cases import bundled, random_case, stage_per_host
from tests.solvers.elastic.random_batches import random_batch

LENGTHS = (40_000, 9_000, 9_000, 2_500, 1_200, 900, *range(200, 900, 20), 7, 2, 1, 1)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 10**9))
def test_random_legal_plans_are_not_below_the_bound(seed: int) -> None:
    rng = Random(seed)
    instance, layout = random_case(rng)
    bound_s = batch_bound_s(instance, layout)
    assert bound_s > 0.0
    for _ in range(4):
        plan = random_batch(instance, layout, rng)
        if plan is not None:
            assert evaluate(instance, plan).step_time_s >= bound_s
    try:
        plan = heuristic_batch(instance, layout)
    except NoPlanError:
        return
    assert evaluate(instance, plan).step_time_s >= bound_s


def test_enough_random_plans_are_legal_and_unlike() -> None:
    rng = Random(11)
    found = cut = placed = several = 0
    for _ in range(60):
        instance, layout = random_case(rng)
        plan = random_batch(instance, layout, rng)
        if plan is None:
            continue
        found += 1
        chunks = [c for b in plan.batch.replicas for p in b.pipelines for c in p.chunks]
        cut += any(part.start for chunk in chunks for part in chunk.slices)
        placed += any(chunk.pieces is not None for chunk in chunks)
        several += any(len(batch.pipelines) > 1 for batch in plan.batch.replicas)
    assert found >= 40
    assert min(cut, placed, several) >= 8


@pytest.mark.parametrize(
    ("cluster", "most"), [("a800-4x8", 0.12), ("mixed-32", 0.12), ("mixed-32-fast", 0.12)]
)
def test_the_rule_is_near_the_bound_on_skewed_lengths(cluster: str, most: float) -> None:
    instance = bundled(cluster, "llama-2-13b", LENGTHS * 4)
    layout = stage_per_host(instance)
    step_s = evaluate(instance, heuristic_batch(instance, layout)).step_time_s
    bound_s = batch_bound_s(instance, layout)
    assert bound_s <= step_s
    assert (step_s - bound_s) / step_s < most


def test_one_stage_and_one_chunk_leave_no_gap_to_speak_of() -> None:
    instance = bundled("a800-4x8", "llama-3.2-3b", [30_000])
    whole = stage_per_host(instance).replicas[0].stages[0]
    stage = replace(whole, layers=(0, instance.model.num_layers))
    layout = Layout((Replica((stage,)),))
    plan = heuristic_batch(instance, layout, num_slices=[1])
    step_s = evaluate(instance, plan).step_time_s
    assert batch_bound_s(instance, layout) == pytest.approx(step_s, rel=0.01)


def test_two_replicas_share_the_work() -> None:
    instance = bundled("a800-4x8", "llama-2-7b", LENGTHS * 2)
    two = stage_per_host(instance, num_replicas=2)
    one = Layout(two.replicas[:1])
    alone_s, together_s = (batch_bound_s(instance, layout) for layout in (one, two))
    assert 0.45 < together_s / alone_s < 0.75


def test_more_sequences_never_lower_the_bound() -> None:
    bounds = []
    for count in (1, 5, 20, 40):
        instance = bundled("mixed-32", "llama-2-13b", LENGTHS[:count])
        bounds.append(batch_bound_s(instance, stage_per_host(instance)))
    assert bounds == sorted(bounds)


def test_a_stage_without_room_has_no_bound() -> None:
    instance = bundled("mixed-32", "llama-3.1-405b", [100])
    instance = replace(instance, workload=Workload(lengths=(100,)))
    with pytest.raises(NoPlanError, match="no room"):
        batch_bound_s(instance, stage_per_host(instance))

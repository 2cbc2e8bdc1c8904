"""Plans for one batch by rule: legal, near their estimate, and clear about what cannot be."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexisolve.data.workload import Workload
from hexisolve.errors import NoPlanError
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import Layout
from hexisolve.plan.price_book import price_book
from hexisolve.solvers.elastic.heuristic import heuristic_batch
from hexisolve.solvers.elastic.pipeline import draft_pipeline, price_chunks, replica_model
from tests.solvers.elastic.elastic_cases import bundled, random_case, spans_of, stage_per_host

SKEWED = (40_000, 9_000, 9_000, 2_500, 1_200, 900, *range(200, 900, 20), 7, 2, 1, 1)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_whatever_comes_back_is_legal(seed: int) -> None:
    instance, layout = random_case(Random(seed))
    try:
        plan = heuristic_batch(instance, layout)
    except NoPlanError:
        return
    assert check_plan(instance, plan) == []
    assert plan.layout == layout


def test_most_random_cases_have_a_plan() -> None:
    rng, found = Random(3), 0
    for _ in range(60):
        try:
            heuristic_batch(*random_case(rng))
        except NoPlanError:
            continue
        found += 1
    assert found >= 40


@pytest.mark.parametrize("cluster", ["a800-4x8", "mixed-32"])
def test_the_estimate_is_near_the_price(cluster: str) -> None:
    instance = bundled(cluster, "llama-2-13b", SKEWED)
    layout = stage_per_host(instance)
    plan = heuristic_batch(instance, layout)
    assert check_plan(instance, plan) == []
    (pipeline,) = plan.batch.replicas[0].pipelines
    model = replica_model(price_book(instance), layout, 0)
    blocks, seen = [], {}
    for chunk in pipeline.chunks:
        part = chunk.slices[0]
        if part.start:
            blocks[seen[part.sequence]] += 1
        else:
            seen[part.sequence] = len(blocks)
            blocks.append(1)
    priced = price_chunks(model, spans_of(pipeline.chunks), blocks)
    estimates = [draft_pipeline(model, priced, pace, relax=True) for pace in ("ahead", "late")]
    seconds = min(draft.makespan_s for draft in estimates)  # type: ignore[union-attr]
    assert seconds == pytest.approx(evaluate(instance, plan).pipeline_s, rel=0.02)


def test_long_sequences_are_cut_and_short_ones_packed_beside_tails() -> None:
    instance = bundled("a800-4x8", "llama-2-13b", SKEWED)
    plan = heuristic_batch(instance, stage_per_host(instance))
    chunks = plan.batch.replicas[0].pipelines[0].chunks
    assert sum(any(part.sequence == 0 for part in chunk.slices) for chunk in chunks) > 2
    assert any(len(chunk.slices) > 1 and chunk.slices[0].start for chunk in chunks)


def test_cutting_beats_whole_sequences() -> None:
    instance = bundled("a800-4x8", "llama-2-13b", SKEWED)
    layout = stage_per_host(instance)
    whole = heuristic_batch(instance, layout, num_slices=[1])
    best = heuristic_batch(instance, layout)
    times = [evaluate(instance, plan).step_time_s for plan in (best, whole)]
    assert times[0] < 0.9 * times[1]


def test_full_attention_is_never_cut() -> None:
    instance = bundled("a800-4x8", "llama-2-13b", SKEWED)
    workload = Workload(lengths=SKEWED, attention="full")
    instance = replace(instance, workload=workload)
    plan = heuristic_batch(instance, stage_per_host(instance))
    assert check_plan(instance, plan) == []


def test_sequences_are_shared_among_replicas() -> None:
    instance = bundled("mixed-32", "llama-2-7b", SKEWED)
    layout = stage_per_host(instance, num_replicas=2)
    plan = heuristic_batch(instance, layout)
    assert check_plan(instance, plan) == []
    evaluation = evaluate(instance, plan)
    ends = [replica.times.makespan_s for replica in evaluation.replicas]
    assert min(ends) > 0.8 * max(ends)


def test_fewer_sequences_than_replicas() -> None:
    instance = bundled("mixed-32", "llama-2-7b", [500])
    with pytest.raises(NoPlanError, match="2 replicas and only 1 sequences"):
        heuristic_batch(instance, stage_per_host(instance, num_replicas=2))
    two = bundled("mixed-32", "llama-2-7b", [500, 1])
    plan = heuristic_batch(two, stage_per_host(two, num_replicas=2))
    assert check_plan(two, plan) == []


def test_recompute_lets_a_long_sequence_fit() -> None:
    instance = bundled("a800-4x8", "llama-2-13b", [700_000, 1_000, 1_000])
    plan = heuristic_batch(instance, stage_per_host(instance))
    assert check_plan(instance, plan) == []
    counts = plan.batch.replicas[0].pipelines[0].recompute
    assert any(set(own) - {"none"} for row in counts for own in row)


def test_a_sequence_that_cannot_fit_is_named() -> None:
    instance = bundled("mixed-32", "llama-2-13b", [100, 40_000_000])
    with pytest.raises(NoPlanError, match=r"sequence 1 of 40000000 tokens.*fewer layers"):
        heuristic_batch(instance, stage_per_host(instance))


def test_equal_questions_have_equal_answers() -> None:
    plans = []
    for _ in range(2):
        instance = bundled("mixed-32", "llama-2-13b", SKEWED)
        layout: Layout = stage_per_host(instance)
        plans.append(heuristic_batch(instance, layout))
    assert plans[0] == plans[1]

"""Bytes and recompute of the chunk search against the memory model that judges plans."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from hexisolve.formulation.chunk_bytes import num_steps, split_all, stage_bytes, step_counts
from hexisolve.formulation.chunk_load import chunk_loads, windows_of
from hexisolve.plan.pieces import split_tokens
from hexisolve.plan.plan import Chunk, Pipeline, Slice
from hexisolve.plan.price_book import price_book
from hexisolve.plan.step_memory import chunk_memories, stage_memory
from hexisolve.solvers.elastic.fit import fewest_steps, live_chunks, peak_excess, relaxed_steps
from hexisolve.solvers.elastic.heuristic import Grain, _chunks, _measured
from hexisolve.solvers.elastic.order import PACES, block_order
from hexisolve.solvers.elastic.pipeline import replica_model
from tests.solvers.elastic.elastic_cases import random_case


def _pipeline(rng: Random):  # type: ignore[no-untyped-def]
    """A random case with chunks, and a plan's pipeline at a random step per chunk and stage."""
    instance, layout = random_case(rng)
    book = price_book(instance)
    model = replica_model(book, layout, 0)
    numbers = sorted(
        range(len(instance.workload.sequence_lengths)),
        key=lambda idx: -instance.workload.sequence_lengths[idx],
    )
    is_causal = instance.workload.attention == "causal"
    grain = Grain(rng.randint(1, 5) if is_causal else 1, 1, rng.choice([1.0, 2.0]))
    spans, blocks = _chunks(_measured(instance, model, tuple(numbers)), grain)
    order = block_order(blocks, rng.choice(PACES))
    return instance, layout, book, model, spans, blocks, order


def _as_plan_pipeline(layout, spans, order, steps):  # type: ignore[no-untyped-def]
    stages = layout.replicas[0].stages
    return Pipeline(
        tuple(Chunk(tuple(Slice(*span) for span in own)) for own in spans),
        order.schedule(len(stages)),
        tuple(
            tuple(step_counts(stage.num_layers, int(step)) for step in row)
            for stage, row in zip(stages, steps, strict=True)
        ),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_bytes_are_those_of_the_memory_model(seed: int) -> None:
    rng = Random(seed)
    instance, layout, book, _, spans, _, order = _pipeline(rng)
    stages = layout.replicas[0].stages
    steps = [[rng.randint(0, num_steps(stage.num_layers)) for _ in spans] for stage in stages]
    pipeline = _as_plan_pipeline(layout, spans, order, steps)
    loads = chunk_loads(instance, spans, windows_of(instance))
    for p, stage in enumerate(stages):
        own = stage_bytes(book, layout, 0, p)
        laid = own.lay(loads)
        exact = chunk_memories(book, stage, p, len(stages), pipeline)
        for k, memory in enumerate(exact):
            held = own.held(laid, steps[p][k])[k].tolist()
            assert held == [a + b for a, b in zip(memory.kept, memory.kv, strict=True)]
            assert own.gradients(laid)[k].tolist() == list(memory.kv_gradients)
            working = own.transient(laid, steps[p][k])[k]
            exact_working = [sum(items) for items in memory.working]
            kinds = {instance.model.layers[idx] for idx in range(*stage.layers)}
            if len(kinds) == 1:
                assert working.tolist() == exact_working
            else:
                assert (working >= exact_working).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_fewest_steps_fit_and_one_fewer_does_not(seed: int) -> None:
    rng = Random(seed)
    instance, layout, book, model, spans, blocks, order = _pipeline(rng)
    stages = layout.replicas[0].stages
    loads = chunk_loads(instance, spans, windows_of(instance))
    for p, stage in enumerate(model.bytes):
        laid, live = stage.lay(loads), live_chunks(order, blocks, p, len(stages))
        excess = []
        for step in range(num_steps(stage.num_layers) + 1):
            rows = [[step] * len(spans) for _ in stages]
            rows = [
                [min(step, num_steps(s.num_layers)) for step in row]
                for s, row in zip(stages, rows, strict=True)
            ]
            memory = stage_memory(
                book, layout, 0, p, [_as_plan_pipeline(layout, spans, order, rows)]
            )
            over = max(
                items.needed_bytes
                - (instance.cluster.device(rank.device).memory_bytes - items.reserve)
                for rank, items in zip(stages[p].ranks, memory, strict=True)
            )
            assert peak_excess(stage, laid, live, step) == over
            excess.append(over)
        found = fewest_steps(stage, laid, live)
        if found is None:
            assert all(over > 0 for over in excess[:: stage.num_layers])
        else:
            assert excess[found] <= 0
            assert found == 0 or excess[found - 1] > 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_relaxed_steps_fit(seed: int) -> None:
    rng = Random(seed)
    instance, layout, book, model, spans, blocks, order = _pipeline(rng)
    stages = layout.replicas[0].stages
    loads = chunk_loads(instance, spans, windows_of(instance))
    relaxed = []
    for p, stage in enumerate(model.bytes):
        laid, live = stage.lay(loads), live_chunks(order, blocks, p, len(stages))
        found = fewest_steps(stage, laid, live)
        if found is None:
            return
        relaxed.append(relaxed_steps(stage, laid, live, found))
        assert (relaxed[-1] <= found).all()
    pipeline = _as_plan_pipeline(layout, spans, order, relaxed)
    for p, stage in enumerate(stages):
        memory = stage_memory(book, layout, 0, p, [pipeline])
        for rank, items in zip(stage.ranks, memory, strict=True):
            usable = instance.cluster.device(rank.device).memory_bytes - items.reserve
            assert items.needed_bytes <= usable


@given(st.lists(st.integers(1, 10**6), min_size=1), st.lists(st.integers(0, 10**6), min_size=1))
def test_tokens_of_many_chunks_are_split_by_the_published_rule(
    tokens: list[int], weights: list[int]
) -> None:
    import numpy as np

    weights = [*weights, 1]
    found = split_all(np.array(tokens), weights)
    assert [tuple(row) for row in found.tolist()] == [split_tokens(t, weights) for t in tokens]


def test_sums_beyond_64_bits_are_split_exactly() -> None:
    import numpy as np

    weights = [2**45, 2**45 + 1, 3]
    assert tuple(split_all(np.array([10**9]), weights)[0].tolist()) == split_tokens(10**9, weights)

"""The price of whole plans: what adds up to a step, and how it answers to change."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_examples import (
    FREE,
    cluster_of,
    four_device_instance,
    instance_of,
    model_of,
    plan_of,
    stage_of,
    two_hosts,
    two_stage_plan,
    whole_chunks,
)

from hexisolve.cost.communication import Flow, edge_bytes, exchange_time_s
from hexisolve.errors import PlanError
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import BatchPlan, Chunk, Layout, Plan, Slice
from hexisolve.plan.price_book import price_book
from hexisolve.plan.stage_price import price_stage


def close(value):  # type: ignore[no-untyped-def]
    return pytest.approx(value, rel=1e-9)


def one_device(policy="none", num_layers=2, **changes):  # type: ignore[no-untyped-def]
    stage = stage_of((0, num_layers), [("d0", 1000, (0, 4))], **changes)
    return plan_of([stage], whole_chunks([1000] * 4), policy)


DENSE_S, ATTENTION_S, ATTENTION_BACK_S = 0.073728, 0.256256, 0.8008
HEAD_S = 2 * 64 * 32 * 1000 / 1e9
PARAMETERS = model_of(2).parameters


def test_one_device_takes_the_sum_of_its_work():  # type: ignore[no-untyped-def]
    price = evaluate(instance_of(), one_device())
    layer_s = 3 * DENSE_S + ATTENTION_S + ATTENTION_BACK_S
    assert price.pipeline_s == close(4 * (2 * layer_s + 3 * HEAD_S))
    assert price.synchronisation_s == 0.0
    assert price.optimizer_s == close(30 * PARAMETERS / 1e9)
    assert price.step_time_s == close(price.pipeline_s + price.optimizer_s)
    assert price.tokens_per_s == close(4000 / price.step_time_s)
    assert price.bubble_share == pytest.approx(0.0, abs=1e-12)
    (device,) = price.devices
    assert device.compute_s == close(price.pipeline_s)
    assert device.exchange_s == 0.0
    assert device.idle_s == close(price.optimizer_s)
    useful = 4 * (2 * (3 * 2 * 36864 * 1000 + (2 * 32 + 2 * 80) * 4 * 500500) + 3 * 4096 * 1000)
    assert device.peak_flop_share == close(useful / (price.step_time_s * 1e9))


@pytest.mark.parametrize(
    ("policy", "repeated_s"),
    [
        ("none", 0.0),
        ("mlp", DENSE_S * (4096 + 24576) / 36864),
        ("layer", DENSE_S),
        ("full", DENSE_S + ATTENTION_S),
    ],
)
def test_recompute_repeats_work_in_backward(policy, repeated_s):  # type: ignore[no-untyped-def]
    chunk = whole_chunks([1000])[0]
    stage = stage_of((0, 1), [("d0", 1000, (0, 4))])
    price = price_stage(instance_of(model=model_of(1)), stage, 0, 2, chunk, {policy: 1})
    assert price.forward_s == close(DENSE_S + ATTENTION_S)
    assert price.backward_s == close(2 * DENSE_S + ATTENTION_BACK_S + repeated_s)


def test_recompute_repeats_the_exchanges_it_needs():  # type: ignore[no-untyped-def]
    stage = stage_of((0, 1), [("d0", 700, (0, 3)), ("d1", 300, (3, 4))])
    chunk = whole_chunks([1000])[0]

    def all_to_all_s(policy):  # type: ignore[no-untyped-def]
        price = price_stage(instance_of(model=model_of(1)), stage, 0, 2, chunk, {policy: 1})
        return price.layers[0].backward.all_to_all_s

    assert all_to_all_s("none") == all_to_all_s("mlp") == close(0.0682 + 0.0298)
    assert all_to_all_s("layer") == all_to_all_s("full") == close(2 * 0.0682 + 2 * 0.0298)


def test_policies_mix_within_a_stage():  # type: ignore[no-untyped-def]
    chunk = whole_chunks([1000])[0]
    stage = stage_of((0, 3), [("d0", 1000, (0, 4))])
    instance = instance_of(model=model_of(3))
    mixed = price_stage(instance, stage, 0, 2, chunk, {"none": 1, "full": 2})
    assert mixed.backward_s == close(
        3 * (2 * DENSE_S + ATTENTION_BACK_S) + 2 * (DENSE_S + ATTENTION_S)
    )
    assert mixed.layers[0].backward.total_s > mixed.layers[2].backward.total_s


def test_launches_cost_per_layer_and_per_hop():  # type: ignore[no-untyped-def]
    cost = replace(FREE, launch_overhead_s=1e-3)
    chunk = whole_chunks([1000])[0]
    ring = stage_of((0, 1), *([(f"d{idx}", 1, (0, 4))] for idx in range(3)))
    instance = instance_of(cluster_of((1.0,) * 3), model_of(1), cost=cost)
    for policy, repeated in (("none", 0), ("mlp", 1), ("layer", 4), ("full", 10)):
        layer = price_stage(instance, ring, 0, 2, chunk, {policy: 1}).layers[0]
        assert layer.forward.overhead_s == close(10e-3)
        assert layer.backward.overhead_s == close((10 + repeated) * 1e-3)


def test_zero_3_gathers_each_layer_under_the_one_before():  # type: ignore[no-untyped-def]
    ranks = [("d0", 500, (0, 2)), ("d1", 500, (2, 4))]
    instance = instance_of(model=model_of(3))
    chunk = whole_chunks([1000])[0]
    plain = price_stage(instance, stage_of((1, 2), ranks), 1, 3, chunk, {"none": 1})
    gathered = price_stage(instance, stage_of((1, 2), ranks, zero=3), 1, 3, chunk, {"none": 1})
    gather_s = 0.5 * instance.model.layers[0].parameters * 2 / 1e6 + 1e-3
    assert gathered.forward_s == close(plain.forward_s + gather_s)
    assert gathered.backward_s == close(plain.backward_s + gather_s)
    both = price_stage(instance, stage_of((1, 3), ranks, zero=3), 1, 3, chunk, {"none": 2})
    assert both.forward_s == close(gather_s + max(plain.forward_s, gather_s) + plain.forward_s)
    per_chunk = stage_of((1, 2), ranks, zero=3, zero3_gradients="chunk")
    scattered = price_stage(instance, per_chunk, 1, 3, chunk, {"none": 1})
    scatter_s = 0.5 * instance.model.layers[0].parameters * 4 / 1e6 + 1e-3
    assert scattered.backward_s == close(gathered.backward_s + scatter_s)


def test_a_gather_adds_to_the_ring_on_the_same_link():  # type: ignore[no-untyped-def]
    """Equation 9 where one link carries everything: what passes it adds up.

    400 kB/s each way, no latency, seconds: half a layer's 36,992 parameters in bf16 gather in
    0.09248 and scatter in fp32 in 0.18496; the ring brings 500 tokens x 64 elements in 0.16, and
    back with fp32 accumulators in 0.48. Compute hides neither.
    """
    ring = [[("d0", 500, (0, 4))], [("d1", 500, (0, 4))]]
    instance = instance_of(cluster_of(link=4e5, latency=0.0), model_of(4))
    chunk = whole_chunks([1000])[0]

    def price(**changes):  # type: ignore[no-untyped-def]
        stage = stage_of((1, 3), *ring, zero=3, **changes)
        return price_stage(instance, stage, 1, 3, chunk, {"none": 2})

    gather_s, scatter_s, ring_s, ring_back_s = 0.09248, 0.18496, 0.16, 0.48
    layer_s, layer_back_s = 0.036864 + ring_s, 0.073728 + ring_back_s
    per_step, per_chunk = price(), price(zero3_gradients="chunk")
    assert per_step.layers[0].forward.total_s == close(layer_s)
    assert per_step.layers[0].backward.total_s == close(layer_back_s)
    assert gather_s < layer_s < ring_s + gather_s
    assert per_step.forward_s == close(gather_s + (ring_s + gather_s) + layer_s)
    assert per_step.backward_s == close(gather_s + (ring_back_s + gather_s) + layer_back_s)
    assert per_chunk.forward_s == per_step.forward_s
    assert per_chunk.backward_s == close(
        gather_s + (ring_back_s + gather_s) + (ring_back_s + scatter_s) + scatter_s
    )
    busy_s = 2 * (ring_s + ring_back_s) + 4 * gather_s + 2 * scatter_s
    assert per_chunk.edges["switch", "d0"] / 4e5 == close(busy_s)


def test_a_hop_waits_for_every_edge_on_its_path():  # type: ignore[no-untyped-def]
    """Equation 9: exchanges fill the ports, then the ring fills the wire between the hosts.

    400 kB/s everywhere, seconds: 250 tokens a rank go to its neighbour in 0.08 before attention
    and in 0.04 after it; 500 tokens of one KV head for two ranks cross the wire in 0.16. The
    gather's hop from d1 to d2 passes port and wire, and its 55,488 bytes take 0.13872 more; the
    busiest edge, a port, has 0.12 + 0.08 of the ring + 0.13872 to do.
    """
    ring = [[("d0", 250, (0, 2)), ("d1", 250, (2, 4))], [("d2", 250, (0, 2)), ("d3", 250, (2, 4))]]
    instance = instance_of(two_hosts(4e5), model_of(4))
    stage = stage_of((1, 3), *ring, zero=3)
    price = price_stage(instance, stage, 1, 3, whole_chunks([1000])[0], {"none": 2})
    layer_s, gather_s = 0.018432 + 0.16 + 0.12, 0.13872
    assert price.layers[0].forward.total_s == close(layer_s)
    assert price.forward_s == close(gather_s + (0.12 + 0.16 + gather_s) + layer_s)


def test_a_gather_beside_exchanges_that_links_carry_easily_costs_nothing():  # type: ignore[no-untyped-def]
    """All edges together need less than the layer: the price is the chain of maxima."""
    ring = [[("d0", 500, (0, 2)), ("d1", 500, (2, 4))], [("d2", 500, (0, 2)), ("d3", 500, (2, 4))]]
    instance = instance_of(cluster_of((1.0,) * 4, link=4e6), model_of(4))
    chunk = whole_chunks([2000])[0]
    stage = stage_of((1, 3), *ring, zero=3, zero3_gradients="chunk")
    price = price_stage(instance, stage, 1, 3, chunk, {"layer": 2})
    gather_s = 0.75 * 36992 * 2 / 4e6 + 1e-3
    layer = price.layers[0]
    assert price.forward_s == gather_s + layer.forward.total_s + layer.forward.total_s
    scatter_s = 0.75 * 36992 * 4 / 4e6 + 1e-3
    assert price.backward_s == close(gather_s + 2 * layer.backward.total_s + scatter_s)


def test_a_tied_head_gathers_the_table_again():  # type: ignore[no-untyped-def]
    ranks = [("d0", 500, (0, 2)), ("d1", 500, (2, 4))]
    chunk = whole_chunks([1000])[0]
    gathers = []
    for is_tied in (True, False):
        instance = instance_of(model=model_of(1, tie_word_embeddings=is_tied))
        price = price_stage(instance, stage_of((0, 1), ranks, zero=3), 0, 1, chunk, {"none": 1})
        gathers.append(price.edges["switch", "d0"])
    assert gathers[0] == gathers[1]


def test_the_head_is_a_barrier_of_the_last_stage():  # type: ignore[no-untyped-def]
    stage = stage_of((1, 2), [("d2", 600, (0, 4))], [("d3", 400, (0, 4))])
    chunk = whole_chunks([1000])[0]
    instance = four_device_instance()
    inner = price_stage(instance, stage, 1, 3, chunk, {"none": 1})
    last = price_stage(instance, stage, 1, 2, chunk, {"none": 1})
    slowest_s = max(600 / 1e9, 400 / 0.7e9) * 2 * 64 * 32
    assert last.forward_s - inner.forward_s == close(slowest_s)
    assert last.backward_s - inner.backward_s == close(2 * slowest_s)


def test_a_boundary_moves_only_what_changes_its_owner():  # type: ignore[no-untyped-def]
    first = stage_of((0, 1), [("d0", 700, (0, 4)), ("d1", 300, (4, 4))])
    second = stage_of((1, 2), [("d2", 600, (0, 4)), ("d3", 400, (4, 4))])
    price = evaluate(four_device_instance(), plan_of([first, second], whole_chunks([1000] * 4)))
    # d0 sends 600 tokens to d2 and 100 to d3, d1 sends 300 to d3; 128 bytes a token.
    assert price.boundaries[0].forward_s == (close(700 * 128 / 1e6 + 1e-3),) * 4
    assert price.boundaries[0].backward_s == (close(700 * 128 / 1e6 + 1e-3),) * 4


def test_stages_of_different_head_degrees_are_priced():  # type: ignore[no-untyped-def]
    """Case 24: head degrees 4, 1, 2, 1."""
    degrees = (4, 1, 2, 1)
    stages, used = [], 0
    for idx, degree in enumerate(degrees):
        heads = 4 // degree
        ranks = [(f"d{used + r}", 1, (r * heads, (r + 1) * heads)) for r in range(degree)]
        stages.append(stage_of((idx, idx + 1), ranks))
        used += degree
    instance = instance_of(cluster_of((1.0,) * used), model_of(4))
    price = evaluate(instance, plan_of(stages, whole_chunks([1000] * 4)))
    moved = [max(1000 // a, 1000 // b) for a, b in pairwise(degrees)]
    for entry, num_tokens in zip(price.boundaries, moved, strict=True):
        assert entry.forward_s[0] == close(num_tokens * 128 / 1e6 + 1e-3)


@pytest.mark.parametrize(
    ("zero", "shares", "received", "gathered"),
    [(0, (1, 1), 4.0, 0.0), (1, (1, 1), 2.0, 1.0), (1, (1, 3), 3.0, 1.5), (3, (1, 3), 3.0, 0.0)],
)
def test_gradients_are_summed_once_a_step(zero, shares, received, gathered):  # type: ignore[no-untyped-def]
    """Bytes into the rank that receives most, per parameter."""
    ranks = [("d0", 500, (0, 2), shares[0]), ("d1", 500, (2, 4), shares[1])]
    plan = plan_of([stage_of((0, 2), ranks, zero=zero)], whole_chunks([1000] * 4))
    price = evaluate(instance_of(), plan)
    assert price.end.gradients.seconds == close(received * PARAMETERS / 1e6 + 1e-3)
    assert price.end.weights.seconds == (
        close(gathered * PARAMETERS / 1e6 + 1e-3) if gathered else 0.0
    )
    own = max(shares) / sum(shares) if zero else 1.0
    assert price.optimizer_s == close(own * PARAMETERS * 30 / 1e9)


def test_tied_embeddings_on_two_stages_exchange_their_gradients():  # type: ignore[no-untyped-def]
    stages = [stage_of((idx, idx + 1), [(f"d{idx}", 1, (0, 4))]) for idx in range(2)]
    plan = plan_of(stages, whole_chunks([1000] * 4))
    tied = evaluate(instance_of(model=model_of(2, tie_word_embeddings=True)), plan)
    assert tied.end.copies.seconds == close(64 * 32 * 4 / 1e6 + 1e-3)
    assert evaluate(instance_of(), plan).end.copies.seconds == 0.0


def replicas_plan(instance):  # type: ignore[no-untyped-def]
    """Two replicas of one device each, two sequences each."""
    parts = []
    for idx in range(2):
        stage = stage_of((0, 2), [(f"d{idx}", 1, (0, 4))])
        chunks = tuple(Chunk((Slice(2 * idx + k, 0, 1000),)) for k in range(2))
        parts.append(plan_of([stage], chunks))
    return Plan(
        Layout(tuple(part.layout.replicas[0] for part in parts)),
        BatchPlan(tuple(part.batch.replicas[0] for part in parts)),
    )


def test_replicas_run_side_by_side_and_sum_gradients():  # type: ignore[no-untyped-def]
    instance = instance_of(cluster_of((1.0, 0.5)))
    price = evaluate(instance, replicas_plan(instance))
    alone = evaluate(instance, one_device())
    assert price.pipeline_s == close(alone.pipeline_s)  # half the work on half the speed
    assert price.replicas[0].times.makespan_s == close(alone.pipeline_s / 2)
    assert price.end.copies.seconds == close(4 * PARAMETERS / 1e6 + 1e-3)


def test_pipelines_of_a_replica_follow_one_another():  # type: ignore[no-untyped-def]
    plan = two_stage_plan()
    whole = plan.batch.replicas[0].pipelines[0]
    parts = []
    for chunks in (whole.chunks[:2], whole.chunks[2:]):
        parts.append(plan_of(plan.layout.replicas[0].stages, chunks).batch.replicas[0].pipelines[0])
    batch = replace(plan.batch.replicas[0], pipelines=tuple(parts))
    twice = replace(plan, batch=BatchPlan((batch,)))
    price, once = evaluate(four_device_instance(), twice), evaluate(four_device_instance(), plan)
    assert price.pipeline_s > once.pipeline_s  # the second pipeline fills again
    assert price.pipeline_s < 2 * once.pipeline_s


def test_a_port_that_everyone_uses_lengthens_the_step():  # type: ignore[no-untyped-def]
    """Two replicas, each a ring over two hosts, share the wire between the hosts (equation 12).

    At 10 kB/s a layer's forward takes 0.036864 s of dense work and a ring of 6.4 s, its backward
    0.073728 and 19.2. Each replica is left with what the other does not use on average: both do
    the same, so ``T = dense + ring / (1 - ring / T)``, a quadratic equation.
    """
    stages = [
        stage_of((0, 2), [(f"d{idx}", 1, (0, 4))], [(f"d{idx + 2}", 1, (0, 4))]) for idx in (0, 1)
    ]
    one = [plan_of([stage], whole_chunks([1000] * 2)) for stage in stages]
    both = Plan(
        Layout(tuple(plan.layout.replicas[0] for plan in one)),
        BatchPlan(tuple(plan.batch.replicas[0] for plan in one)),
    )

    def price(link, plan):  # type: ignore[no-untyped-def]
        return evaluate(instance_of(two_hosts(link)), plan)

    def together_s(dense_s, ring_s):  # type: ignore[no-untyped-def]
        half = dense_s / 2 + ring_s
        return half + math.sqrt(half * half - dense_s * ring_s)

    slow, alone = price(1e4, both), price(1e4, one[0])
    head_s = 2 * 64 * 32 * 500 / 1e9
    dense_s = 0.036864
    forward_s = 2 * (dense_s + 6.4) + head_s
    backward_s = 2 * (2 * dense_s + 19.2) + 2 * head_s
    assert alone.pipeline_s == close(2 * (forward_s + backward_s))
    assert alone.edge_wait_s == 0.0
    # The head of the model leaves the wire alone, as dense work does.
    waiting_s = 2 * (
        together_s(2 * dense_s + head_s, 2 * 6.4) + together_s(4 * dense_s + 2 * head_s, 2 * 19.2)
    )
    assert slow.pipeline_s == pytest.approx(waiting_s, rel=1e-4)
    assert slow.edge_wait_s == close(slow.pipeline_s - alone.pipeline_s)
    assert slow.is_edge_bound
    assert slow.step_time_s >= max(slow.edge_seconds.values())
    assert not alone.is_edge_bound
    assert not price(1e9, both).is_edge_bound


def test_bytes_on_edges_are_those_of_the_flows():  # type: ignore[no-untyped-def]
    stages = [stage_of((idx, idx + 1), [(f"d{idx}", 1, (0, 4))]) for idx in range(2)]
    price = evaluate(instance_of(), plan_of(stages, whole_chunks([1000] * 4)))
    assert price.edges["d0", "switch"] == 4 * 1000 * 128
    assert price.edges["switch", "d0"] == 4 * 1000 * 128


def test_the_book_follows_the_flow_rule_small_and_large(monkeypatch):  # type: ignore[no-untyped-def]
    cluster = cluster_of((1.0,) * 5)
    instance = instance_of(cluster, cost=replace(FREE, link_efficiency=0.8))
    traffic = {
        (f"d{a}", f"d{b}"): 1000.0 * a * (b + 1) for a in range(5) for b in range(5)
    }  # some of no bytes, some to themselves
    flows = [Flow(*pair, num_bytes) for pair, num_bytes in traffic.items()]
    small = price_book(instance).exchange(traffic)
    monkeypatch.setattr("hexisolve.plan.price_book._MAX_SMALL", 0)
    large = price_book(instance).exchange(traffic)
    assert small.seconds == large.seconds == close(exchange_time_s(cluster, flows, 0.8))
    assert small.edges == large.edges == edge_bytes(cluster, flows)


def test_a_deadlock_is_told_as_a_rejected_plan():  # type: ignore[no-untyped-def]
    plan = two_stage_plan()
    pipeline = plan.batch.replicas[0].pipelines[0]
    rows = (pipeline.schedule[0], ("F2", "B2", "F0", "B0", "F1", "B1", "F3", "B3"))
    batch = replace(plan.batch.replicas[0], pipelines=(replace(pipeline, schedule=rows),))
    with pytest.raises(PlanError, match="replica 0: the schedule deadlocks"):
        evaluate(four_device_instance(), replace(plan, batch=BatchPlan((batch,))))


def test_a_2_to_1_pair_follows_the_ratio():  # type: ignore[no-untyped-def]
    """Case 27."""
    instance = instance_of(cluster_of((1.0, 0.5), link=1e9, latency=0.0))

    def pipeline_s(fast, slow):  # type: ignore[no-untyped-def]
        ring = stage_of((0, 2), [("d0", fast, (0, 4))], [("d1", slow, (0, 4))])
        return evaluate(instance, plan_of([ring], whole_chunks([1000] * 4))).pipeline_s

    even, uneven = pipeline_s(500, 500), pipeline_s(666, 334)
    slow_alone = evaluate(instance_of(cluster_of((0.5,))), one_device()).pipeline_s
    assert even == pytest.approx(slow_alone / 2, rel=1e-6)  # the slow card's time
    assert uneven == pytest.approx(even * 2 / 3, rel=5e-3)


def test_one_long_document_has_eight_times_the_pairs_of_eight_short_ones():  # type: ignore[no-untyped-def]
    """Case 13: 32k against 8 x 4k, the same tokens."""
    stage = stage_of((0, 1), [("d0", 1, (0, 4))])
    instance = instance_of(model=model_of(1), lengths=(32768,) + (4096,) * 8)
    long = Chunk((Slice(0, 0, 32768),))
    short = Chunk(tuple(Slice(1 + idx, 0, 4096) for idx in range(8)))
    prices = [price_stage(instance, stage, 0, 2, chunk, {"none": 1}) for chunk in (long, short)]
    phases = [price.layers[0].forward for price in prices]
    assert phases[0].dense_s == phases[1].dense_s
    assert phases[0].attention_s / phases[1].attention_s == pytest.approx(8.0, rel=1e-3)


def test_a_sliding_window_counts_what_each_query_sees():  # type: ignore[no-untyped-def]
    """Case 14, cost: min(position + 1, window), across a shard edge."""
    model = model_of(
        1, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=100
    )
    stage = stage_of((0, 1), [("d0", 700, (0, 4))], [("d1", 300, (0, 4))])
    chunk = whole_chunks([1000])[0]
    work = price_stage(instance_of(model=model), stage, 0, 2, chunk, {"none": 1})
    pieces = [(0, 350), (650, 1000)]
    pairs = sum(min(pos + 1, 100) for start, stop in pieces for pos in range(start, stop))
    flop_s = 2 * 32 * 4 * pairs / 5e8
    assert work.layers[0].forward.attention_s == close(flop_s)


def test_a_slice_attends_to_its_prefix():  # type: ignore[no-untyped-def]
    """m equal slices have the pairs of the whole, and (m + 1) / 2 times its ring bytes."""
    stage = stage_of((0, 1), [("d0", 700, (0, 4))], [("d1", 300, (0, 4))])
    instance = instance_of(model=model_of(1))

    def price(start, stop):  # type: ignore[no-untyped-def]
        return price_stage(instance, stage, 0, 2, Chunk((Slice(0, start, stop),)), {"none": 1})

    whole, parts = price(0, 1000), [price(0, 500), price(500, 1000)]
    attention = sum(part.layers[0].forward.attention_s for part in parts)
    assert attention == close(whole.layers[0].forward.attention_s)
    edge = ("switch", "d1")
    assert sum(part.edges[edge] for part in parts) == close(1.5 * whole.edges[edge])


def test_queries_travel_without_the_prefix():  # type: ignore[no-untyped-def]
    """Equation 5: the bytes of a ring in which Q travels do not grow with the context."""
    ring = [[("d0", 700, (0, 4))], [("d1", 300, (0, 4))]]
    stage = stage_of((0, 1), *ring, ring_kind="q")
    chunks = [Chunk((Slice(0, start, start + 1000),)) for start in (0, 3000)]
    instance = instance_of(model=model_of(1), context_tokens=4000)
    prices = [price_stage(instance, stage, 0, 2, chunk, {"none": 1}) for chunk in chunks]
    edge = ("switch", "d1")
    assert prices[0].edges[edge] == prices[1].edges[edge]
    forward = 700 * 4 * 16 * 2 + 300 * 4 * (16 * 4 + 4)
    backward = 700 * 4 * (16 * 2 + 16 * 2 + 8) + 300 * 4 * 16 * 4
    assert prices[0].edges[edge] == close(forward + backward)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.25, 8.0), st.sampled_from(["none", "layer", "full"]), st.sampled_from([0, 1, 3]))
def test_all_rates_times_k_give_time_over_k(factor, policy, zero):  # type: ignore[no-untyped-def]
    speeds = (1.0, 0.5, 1.0, 0.7)
    layout = two_stage_plan().layout.replicas[0].stages
    stages = [replace(stage, zero=zero) for stage in layout]
    plan = plan_of(stages, whole_chunks([1000] * 4), policy)
    base = cluster_of(speeds, latency=0.0)
    fast = cluster_of(speeds, latency=0.0, peak=1e9 * factor, link=1e6 * factor)
    price, other = evaluate(instance_of(base), plan), evaluate(instance_of(fast), plan)
    assert other.pipeline_s == close(price.pipeline_s / factor)
    assert other.synchronisation_s == close(price.synchronisation_s / factor)


def test_interchangeable_devices_may_change_places():  # type: ignore[no-untyped-def]
    instance = four_device_instance()
    plan = two_stage_plan()
    # d0 and d2 are equal: same speed, same links.
    names = {"d0": "d2", "d2": "d0"}
    stages = [
        replace(
            stage,
            ring=tuple(
                replace(
                    group,
                    ranks=tuple(
                        replace(rank, device=names.get(rank.device, rank.device))
                        for rank in group.ranks
                    ),
                )
                for group in stage.ring
            ),
        )
        for stage in plan.layout.replicas[0].stages
    ]
    other = plan_of(stages, whole_chunks([1000] * 4))
    assert evaluate(instance, other).step_time_s == evaluate(instance, plan).step_time_s


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(lambda w: sum(w[:2]) and sum(w[2:])),
    st.integers(0, 4),
    st.integers(1, 5),
)
def test_parts_add_up_to_the_step_of_every_device(weights, cut, num_chunks):  # type: ignore[no-untyped-def]
    first = stage_of((0, 1), [("d0", weights[0], (0, cut)), ("d1", weights[1], (cut, 4))])
    second = stage_of((1, 2), [("d2", weights[2], (0, 4))], [("d3", weights[3], (0, 4))])
    instance = four_device_instance(batch_sequences=num_chunks)
    price = evaluate(instance, plan_of([first, second], whole_chunks([1000] * num_chunks)))
    for device in price.devices:
        total_s = device.compute_s + device.exchange_s + device.idle_s
        assert total_s == pytest.approx(price.step_time_s, rel=1e-9)
    for stage in price.stages:
        assert stage.breakdown().total_s == close(stage.busy_s)
        assert stage.busy_s <= price.pipeline_s * (1 + 1e-9)
    assert 0 <= price.bubble_share < 1


def test_equal_questions_are_answered_equally_by_a_fresh_book():  # type: ignore[no-untyped-def]
    warm = four_device_instance()
    evaluate(warm, two_stage_plan())
    again = evaluate(warm, two_stage_plan()).step_time_s
    assert again == evaluate(four_device_instance(), two_stage_plan()).step_time_s


def test_documents_that_lie_in_one_group_do_not_travel():  # type: ignore[no-untyped-def]
    """Equation 3: only the document that straddles is cut, and only it goes around."""
    ring = stage_of((0, 1), *([(f"d{idx}", 1, (0, 4))] for idx in range(3)))
    instance = instance_of(cluster_of((1.0,) * 3), model_of(1), lengths=(400, 400, 400, 300))

    def edges(*sizes):  # type: ignore[no-untyped-def]
        chunk = Chunk(tuple(Slice(idx, 0, size) for idx, size in enumerate(sizes)))
        return price_stage(instance, ring, 0, 2, chunk, {"none": 1}).edges

    assert edges(400, 400, 400) == {}
    # 500 tokens a group: three documents stay whole, 300 tokens are cut in 100 + 100 + 100.
    forward, backward = 200 * 2 * 32 * 2, 200 * 2 * 32 * (2 + 4)
    assert edges(400, 400, 400, 300)["switch", "d0"] == close(forward + backward)


def test_explicit_pieces_are_priced_as_they_are():  # type: ignore[no-untyped-def]
    """Halves in order instead of zig-zag: the back half has three times the pairs."""
    ring = stage_of((0, 1), [("d0", 1, (0, 4))], [("d1", 1, (0, 4))])
    halves = ((Slice(0, 0, 500),), (Slice(0, 500, 1000),))
    instance = instance_of(model=model_of(1))
    price = price_stage(instance, ring, 0, 2, Chunk((Slice(0, 0, 1000),), (halves,)), {"none": 1})
    pairs = 500 * 500 + 500 * 501 // 2
    assert price.layers[0].forward.attention_s == close(2 * 32 * 4 * pairs / 5e8)

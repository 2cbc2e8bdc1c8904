"""Memory of every device at its peak, item by item."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from plan_examples import (
    FREE,
    cluster_of,
    four_device_instance,
    instance_of,
    model_of,
    plan_of,
    stage_of,
    two_stage_plan,
    whole_chunks,
)

from hexisolve.cost.memory import (
    RankShare,
    backward_transient_bytes,
    kept_bytes,
    layer_input_bytes,
    usable_bytes,
)
from hexisolve.data.constants import GIB, MIB, CostConstants
from hexisolve.data.model_spec import ModelSpec
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import BatchPlan, Chunk, Slice
from hexisolve.plan.price_book import price_book
from hexisolve.plan.step_memory import chunk_memory, peers

LAYER = model_of(1).layers[0]
SHARE = RankShare(tokens=700, group_tokens=1000, q_heads=3, kv_heads=2)

INPUT = 700 * 64 * 2
OUTPUT = 1000 * 3 * (16 * 2 + 4)
PRE = 700 * (64 * 2 + 4)
QKV = 1000 * (3 * 16 + 2 * 32) * 2
POST = 700 * ((64 + 2 * 64 + 4 * 128) * 2 + 4)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("full", INPUT),
        ("layer", INPUT + OUTPUT),
        ("mlp", INPUT + OUTPUT + PRE + QKV + 700 * 64 * 2),
        ("none", INPUT + OUTPUT + PRE + QKV + POST),
    ],
)
def test_kept_bytes_of_a_llama_block(policy, expected):  # type: ignore[no-untyped-def]
    assert kept_bytes(policy, SHARE, LAYER, 64, 2) == expected


def test_the_transient_has_what_the_policy_dropped():  # type: ignore[no-untyped-def]
    """Case 55: the recomputed block's peak is in the memory model."""
    transient = {
        policy: backward_transient_bytes(policy, SHARE, LAYER, 64, 2, 4)
        for policy in ("none", "mlp", "layer", "full")
    }
    kept = {policy: kept_bytes(policy, SHARE, LAYER, 64, 2) for policy in transient}
    sums = {transient[policy] + kept[policy] for policy in transient}
    assert len(sums) == 1  # what is not kept is made again
    assert transient["full"] > transient["layer"] > transient["mlp"] > transient["none"] > 0


def test_states_follow_the_zero_mode():  # type: ignore[no-untyped-def]
    parameters = model_of(2).parameters
    expected = {
        (0, "step"): (18, 18),
        (1, "step"): (6 + 3, 6 + 9),
        (3, "step"): (4 + 3.5, 4 + 10.5),
        (3, "chunk"): (4.5, 13.5),
    }
    for (zero, gradients), per_parameter in expected.items():
        ranks = [("d0", 500, (0, 2), 1), ("d1", 500, (2, 4), 3)]
        stage = stage_of((0, 2), ranks, zero=zero, zero3_gradients=gradients)
        price = evaluate(instance_of(), plan_of([stage], whole_chunks([1000] * 4)))
        found = [device.memory.states for device in price.devices]
        assert found == [pytest.approx(parameters * each, abs=1) for each in per_parameter]


def test_live_chunks_are_counted_at_the_start_of_a_backward():  # type: ignore[no-untyped-def]
    price = evaluate(four_device_instance(), two_stage_plan())
    d0, _, d2, _ = price.devices
    none = kept_bytes("none", RankShare(700, 1000, 3, 2), LAYER, 64, 2)
    assert d0.memory.activations == 2 * none  # P - s = 2 chunks in flight
    assert d2.memory.activations == kept_bytes("none", RankShare(600, 600, 4, 2), LAYER, 64, 2)


def test_later_stages_hold_no_more_chunks():  # type: ignore[no-untyped-def]
    """Case 26: min(m, P - s) chunks are in flight on stage s of equal devices."""
    for num_chunks in (1, 3, 4, 7):
        stages = [stage_of((idx, idx + 1), [(f"d{idx}", 1, (0, 4))]) for idx in range(4)]
        instance = instance_of(cluster_of((1.0,) * 4), model_of(4), batch_sequences=num_chunks)
        price = evaluate(instance, plan_of(stages, whole_chunks([1000] * num_chunks)))
        one = kept_bytes("none", RankShare(1000, 1000, 4, 2), LAYER, 64, 2)
        held = [device.memory.activations // one for device in price.devices]
        assert held == [min(num_chunks, 4 - stage_idx) for stage_idx in range(4)]


def test_memory_is_the_maximum_over_real_stages():  # type: ignore[no-untyped-def]
    """Case 20: stages [1, 2, 2, 3], never total / stages."""
    bounds = (0, 1, 3, 5, 8)
    stages = [
        stage_of((a, b), [(f"d{idx}", 1, (0, 4))]) for idx, (a, b) in enumerate(pairwise(bounds))
    ]
    model = model_of(8)
    price = evaluate(
        instance_of(cluster_of((1.0,) * 4), model), plan_of(stages, whole_chunks([1000] * 4))
    )
    layer = model.layers[0].parameters
    ends = [model.embedding_parameters, 0, 0, model.head_parameters + 64]
    expected = [18 * (count * layer + end) for count, end in zip((1, 2, 2, 3), ends, strict=True)]
    assert [device.memory.states for device in price.devices] == expected


def test_dense_and_moe_layers_count_by_themselves():  # type: ignore[no-untyped-def]
    """Case 20: dense-then-MoE; the stage that holds the experts needs their memory."""
    model = ModelSpec.from_config(
        {
            "model_type": "deepseek_v2", "hidden_size": 64, "intermediate_size": 128,
            "moe_intermediate_size": 32, "n_routed_experts": 16, "num_experts_per_tok": 2,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1,
            "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 2,
            "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
            "v_head_dim": 16, "vocab_size": 32, "tie_word_embeddings": False,
        },
        "moe",
    )  # fmt: skip
    assert [layer.mlp.kind for layer in model.layers] == ["dense", "moe"]
    stages = [stage_of((idx, idx + 1), [(f"d{idx}", 1, (0, 4))]) for idx in range(2)]
    price = evaluate(instance_of(model=model), plan_of(stages, whole_chunks([1000] * 4)))
    states = [device.memory.states for device in price.devices]
    outer = [model.embedding_parameters, model.head_parameters + model.final_norm_parameters]
    assert states == [
        18 * (layer.parameters + o) for layer, o in zip(model.layers, outer, strict=True)
    ]


def test_tied_embeddings_on_two_stages_are_charged_twice():  # type: ignore[no-untyped-def]
    """Case 21: memory counts two copies; one stage holds one."""
    model = model_of(2, tie_word_embeddings=True)
    table = 64 * 32
    one = [stage_of((0, 2), [("d0", 1, (0, 4))])]
    two = [stage_of((idx, idx + 1), [(f"d{idx}", 1, (0, 4))]) for idx in range(2)]
    totals = []
    for stages in (one, two):
        price = evaluate(instance_of(model=model), plan_of(stages, whole_chunks([1000] * 4)))
        totals.append(sum(device.memory.states for device in price.devices))
    assert totals == [18 * model.parameters, 18 * (model.parameters + table)]


def test_a_405b_residual_is_4_gib_a_layer(shared_data):  # type: ignore[no-untyped-def]
    """Case 25: 126 layers, hidden 16,384, bf16, 131,072 tokens: 504 GiB in all."""
    model = ModelSpec.from_config(shared_data / "llm-configs" / "llama-3.1-405b.json")
    share = RankShare(131_072, 131_072, 128, 8)
    assert layer_input_bytes(share, model.hidden_size, 2) == 4 * GIB
    stage = stage_of((0, 126), [("d0", 1, (0, 128))])
    instance = instance_of(model=model, context_tokens=131_072, batch_sequences=1)
    shape = (((0, 131_072),), None)
    memory = chunk_memory(price_book(instance), stage, 0, 1, shape, {"full": 126})
    assert memory.kept == (504 * GIB,)


def test_usable_bytes_leave_room_for_context_peers_and_fragments():  # type: ignore[no-untyped-def]
    cost = CostConstants()
    assert usable_bytes(80 * GIB, 3, cost) == int((78 * GIB - 3 * 64 * MIB) * 0.94)
    assert usable_bytes(1 * GIB, 0, cost) == 0


def test_the_reserve_is_what_is_not_usable():  # type: ignore[no-untyped-def]
    cost = replace(FREE, reserve_bytes=1000, peer_buffer_bytes=10, usable_fraction=0.5)
    device = evaluate(four_device_instance(cost=cost), two_stage_plan()).devices[0]
    assert device.usable_bytes == int((10**9 - 1000 - 3 * 10) * 0.5)
    assert device.memory.reserve == 10**9 - device.usable_bytes
    assert device.peak_bytes == device.memory.needed_bytes


def test_peers_are_the_stage_and_its_neighbours():  # type: ignore[no-untyped-def]
    stages = [
        stage_of((idx, idx + 1), [(f"d{idx}{r}", 1, (0, 4)) for r in range(size)])
        for idx, size in enumerate((4, 1, 2, 1))
    ]
    replica = plan_of(stages, whole_chunks([8])).layout.replicas[0]
    assert [peers(replica, idx) for idx in range(4)] == [4, 6, 3, 2]


def test_logits_are_one_tile_on_the_last_stage():  # type: ignore[no-untyped-def]
    cost = replace(FREE, logits_tile_tokens=128)
    price = evaluate(four_device_instance(cost=cost), two_stage_plan())
    assert [device.memory.logits for device in price.devices] == [
        0,
        0,
        128 * 32 * 10,
        128 * 32 * 10,
    ]


def test_zero_3_gathers_two_blocks():  # type: ignore[no-untyped-def]
    ranks = [("d0", 500, (0, 2)), ("d1", 500, (2, 4))]
    buffers = []
    for zero in (0, 3):
        plan = plan_of([stage_of((0, 2), ranks, zero=zero)], whole_chunks([1000] * 4))
        buffers.append(evaluate(instance_of(), plan).devices[0].memory.buffers)
    assert buffers[1] - buffers[0] == 2 * LAYER.parameters * 2


def sliced_price(policy):  # type: ignore[no-untyped-def]
    """One device, one layer, one sequence of 1000 in two slices."""
    stage = stage_of((0, 1), [("d0", 1, (0, 4))])
    chunks = [Chunk((Slice(0, 0, 500),)), Chunk((Slice(0, 500, 1000),))]
    plan = plan_of([stage], chunks, policy)
    pipeline = replace(plan.batch.replicas[0].pipelines[0], schedule=(("F0", "F1", "B1", "B0"),))
    batch = replace(plan.batch.replicas[0], pipelines=(pipeline,))
    plan = replace(plan, batch=BatchPlan((batch,)))
    return evaluate(instance_of(model=model_of(1), batch_sequences=1), plan).devices[0].memory


def test_slices_keep_their_kv_for_the_later_ones():  # type: ignore[no-untyped-def]
    kv = 500 * 2 * 32
    gradients = kv * 4
    assert sliced_price("full").kv == kv * 2 + gradients
    assert sliced_price("layer").kv == kv * 2 + gradients
    assert sliced_price("none").kv == gradients  # K and V are in the activations


def test_offloaded_layers_leave_the_device():  # type: ignore[no-untyped-def]
    stage = stage_of((0, 2), [("d0", 1, (0, 4))])
    book = price_book(instance_of())
    shape = (((0, 1000),), None)
    all_here = chunk_memory(book, stage, 0, 2, shape, {"none": 2})
    one_away = chunk_memory(book, stage, 0, 2, shape, {"none": 2}, offload=1)
    assert one_away.kept[0] + one_away.offloaded[0] == all_here.kept[0]
    assert one_away.offloaded[0] == all_here.kept[0] // 2


def test_more_recompute_needs_less_memory_and_more_time():  # type: ignore[no-untyped-def]
    stages = two_stage_plan().layout.replicas[0].stages
    prices = [
        evaluate(four_device_instance(), plan_of(stages, whole_chunks([1000] * 4), policy))
        for policy in ("none", "mlp", "layer", "full")
    ]
    kept = [price.devices[0].memory.activations for price in prices]
    times = [price.step_time_s for price in prices]
    assert kept == sorted(kept, reverse=True)
    assert times == sorted(times)
    assert len(set(kept)) == len(set(times)) == 4

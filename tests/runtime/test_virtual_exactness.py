"""Loss and every gradient of the virtual executor against one process, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hexisolve.data.model_spec import ModelSpec
from hexisolve.errors import UnsupportedPlanError
from hexisolve.plan.plan import Chunk, Plan, Slice, ZeroMode
from hexisolve.program.compile import compile_plan
from hexisolve.runtime import virtual
from hexisolve.runtime.requests import Message
from hexisolve.runtime.verify import verify_virtual
from tests.plans import CASES, TWO_STAGES, make, tiny_model, whole_chunks
from tests.runtime.exactness import (
    RING_BLOCKS,
    assert_exact,
    assert_virtually_exact,
    head_cuts,
    one_group,
    one_ring,
    replicas,
)


@pytest.mark.parametrize("name", CASES)
def test_hand_written_plan_equals_one_process(name: str) -> None:
    assert_virtually_exact(CASES[name]())


def test_result_does_not_depend_on_the_order_of_ranks() -> None:
    case = CASES["ring_of_groups"]()
    proofs = [
        verify_virtual(*case, rank_order_seed=seed, ring_blocks=RING_BLOCKS)
        for seed in (None, 0, 1)
    ]
    assert len({proof.loss for proof in proofs}) == 1


def test_many_ring_blocks_are_exact() -> None:
    assert_exact(verify_virtual(*CASES["packed_documents"](), ring_blocks=64))


# Heads.


@pytest.mark.parametrize(
    ("num_q", "num_kv", "heads"),
    [
        # 40 query, 8 KV heads over 16 ranks, and over those that divide them.
        (40, 8, (3, 2) * 8),
        (40, 8, (8,) * 5),
        (40, 8, (4,) * 10),
        # Qwen2.5-7B on 8.
        (28, 4, (4, 3, 4, 3, 4, 3, 4, 3)),
        (12, 12, (3, 3, 2, 2, 2)),
        (7, 7, (2, 2, 2, 1)),
        (20, 20, (3, 3, 3, 3, 2, 2, 2, 2)),
        # 6 query, 3 KV heads: KV head 1 on both ranks, or on one.
        (6, 3, (3, 3)),
        (6, 3, (4, 2)),
        # Devices that divide no power of two; one KV head for all; ranks without heads.
        (8, 2, (3, 3, 2)),
        (8, 8, (2, 2, 2, 1, 1)),
        (16, 4, (3, 3, 2, 2, 2, 2, 2)),
        (8, 1, (4, 3, 1)),
        (6, 2, (5, 0, 1)),
        (6, 3, (6, 0)),
    ],
)
def test_heads_that_do_not_divide(num_q: int, num_kv: int, heads: tuple[int, ...]) -> None:
    model = tiny_model(2, num_q, num_kv, head_dim=2, hidden_size=16)
    tokens = [3 + idx % 2 for idx in heads]
    assert_virtually_exact(one_group(tokens, heads, [23, 16], model))


def test_every_rank_with_query_heads_holds_the_kv_heads_they_read() -> None:
    instance, plan = one_group([1, 1, 1], [5, 0, 1], [12], tiny_model(1, 6, 2))
    programs = compile_plan(instance, plan)
    for program in programs.ranks:
        openings = [
            item
            for template in program.templates.values()
            for item in template.instructions
            if type(item).__name__ == "AttnOpen"
        ]
        for opening in openings:
            read = {head // opening.heads_per_kv for head in range(*opening.q_heads)}
            assert read == set(range(*opening.kv_heads))


# Sequences.


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
@pytest.mark.parametrize("lengths", [[1], [2], [1, 2], [2, 1, 1], [7], [3, 5]])
def test_very_short_sequences(lengths: list[int], degree: int) -> None:
    model = tiny_model(2, 4, 2, hidden_size=16)
    assert_virtually_exact(one_ring([1] * degree, lengths, model))
    heads = head_cuts(*[4 // degree + (idx < 4 % degree) for idx in range(degree)])
    group = [(1, cut) for cut in heads]
    packs = [list(range(len(lengths)))]
    assert_virtually_exact(make([((0, 2), [group])], packs, lengths, model=model))


def test_2999_tokens_on_4_ranks() -> None:
    model = tiny_model(1, 2, 1, hidden_size=8)
    assert_virtually_exact(one_ring([1, 1, 1, 1], [2999], model))


def test_7_tokens_on_2_ranks() -> None:
    assert_virtually_exact(one_ring([1, 1], [7]))
    assert_virtually_exact(one_group([1, 1], [3, 3], [7], tiny_model(2)))


@pytest.mark.parametrize("window", [1, 3, 7, 20])
@pytest.mark.parametrize("tokens", [(1, 1), (5, 2, 3)])
def test_sliding_window_across_shard_edges(window: int, tokens: tuple[int, ...]) -> None:
    """A window shorter than the sequence, and shorter than a shard."""
    config = dict(tiny_model(2).config) | {
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window,
    }  # fmt: skip
    assert_virtually_exact(one_ring(tokens, [25, 9], ModelSpec.from_config(config, "windowed")))


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_other_families(family: str) -> None:
    config = dict(tiny_model(4).config) | {"model_type": family}
    model = ModelSpec.from_config(config, family)
    assert_virtually_exact(make(TWO_STAGES, [[0], [1]], [21, 14], model=model))


def test_full_attention() -> None:
    """Without a causal mask, over a ring and a head group."""
    assert_virtually_exact(make(TWO_STAGES, [[0, 1], [2]], [21, 8, 14], attention="full"))


def test_explicit_pieces() -> None:
    """Pieces of a plan's own choice, out of order and of one token."""
    instance, plan = make([((0, 4), [[(1, (0, 6))], [(1, (0, 6))]])], [[0]], [12])
    pieces = (
        (
            (Slice(0, 7, 8), Slice(0, 0, 3)),
            (Slice(0, 3, 7), Slice(0, 8, 12)),
        ),
    )
    (whole,) = whole_chunks([12], [[0]])
    assert_virtually_exact((instance, _with_chunk(plan, Chunk(whole.slices, pieces))))


def test_offload_is_refused_by_name() -> None:
    instance, plan = make([((0, 4), [[(1, (0, 6))]])], [[0]], [12])
    (batch,) = plan.batch.replicas
    pipeline = replace(batch.pipelines[0], offload=((2,),))
    offloading = replace(plan.batch, replicas=(replace(batch, pipelines=(pipeline,)),))
    with pytest.raises(UnsupportedPlanError, match="offload"):
        verify_virtual(instance, replace(plan, batch=offloading))


def _with_chunk(plan: Plan, chunk: Chunk) -> Plan:
    (replica,) = plan.batch.replicas
    (pipeline,) = replica.pipelines
    pipeline = replace(pipeline, chunks=(chunk,))
    return replace(
        plan, batch=replace(plan.batch, replicas=(replace(replica, pipelines=(pipeline,)),))
    )


# Stages, chunks, replicas and recompute.


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("is_tied", [False, True])
def test_unlike_replicas(zero: ZeroMode, is_tied: bool) -> None:
    """A pipeline beside single-stage replicas with other shares of the batch."""
    assert_virtually_exact(replicas(2, is_tied=is_tied, zero=zero))


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 4])
def test_chunk_counts_around_three_stages(num_chunks: int) -> None:
    stages = [
        ((0, 1), [[(2, (0, 4)), (1, (4, 6))]]),
        ((1, 3), [[(1, (0, 6))]]),
        ((3, 4), [[(3, (0, 6))], [(1, (0, 6))]]),
    ]
    lengths = [9 + 4 * idx for idx in range(num_chunks)]
    assert_virtually_exact(make(stages, [[idx] for idx in range(num_chunks)], lengths))


def test_stages_of_head_degrees_4_1_2_1() -> None:
    stages = [
        ((0, 1), [list(zip((2, 1, 1, 3), head_cuts(2, 1, 2, 1), strict=True))]),
        ((1, 2), [[(1, (0, 6))]]),
        ((2, 3), [[(2, (0, 5)), (1, (5, 6))]]),
        ((3, 4), [[(1, (0, 6))]]),
    ]
    assert_virtually_exact(make(stages, [[0], [1], [2]], [15, 11, 22]))


def test_recompute_gives_the_same_gradients() -> None:
    """Not only within the tolerance: the repeated instructions give the same bits."""
    proofs = [
        verify_virtual(
            *make(TWO_STAGES, [[0], [1]], [17, 11], recompute=policy), ring_blocks=RING_BLOCKS
        )
        for policy in ("none", "mlp", "layer", "full")
    ]
    for proof in proofs:
        assert_exact(proof)
    assert len({(proof.loss, proof.max_gradient_difference) for proof in proofs}) == 1


def test_mixed_recompute_in_one_stage() -> None:
    instance, plan = make([((0, 4), [[(2, (0, 4)), (1, (4, 6))]])], [[0]], [19],
                          recompute={"full": 1, "layer": 1, "mlp": 1, "none": 1})  # fmt: skip
    assert_virtually_exact((instance, plan))


def test_running_plan_a_first_does_not_change_plan_b() -> None:
    alone = verify_virtual(*CASES["packed_documents"](), ring_blocks=RING_BLOCKS)
    verify_virtual(*CASES["two_stages"](), ring_blocks=RING_BLOCKS)
    after = verify_virtual(*CASES["packed_documents"](), ring_blocks=RING_BLOCKS)
    assert (alone.loss, alone.max_gradient_difference) == (
        after.loss, after.max_gradient_difference
    )  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5)])
def test_narrower_dtypes(dtype: str, tolerance: float) -> None:
    proof = verify_virtual(*CASES["ring_of_groups"](), dtype=dtype, ring_blocks=RING_BLOCKS)
    assert proof.ok(tolerance)
    assert not proof.ok(), "float32 cannot be exact to 1e-10"


def test_bfloat16_is_no_worse_than_twice_one_bfloat16_process() -> None:
    """Both against the float64 reference; on one rank the executor is the plain model."""
    lengths = [48, 33]
    alone = verify_virtual(
        *make([((0, 4), [[(1, (0, 6))]])], [[0], [1]], lengths), dtype="bfloat16"
    )
    spread = verify_virtual(
        *make([((0, 4), [[(3, (0, 3)), (2, (3, 6))], [(1, (0, 1)), (4, (1, 6))]])],
              [[0], [1]], lengths), dtype="bfloat16", ring_blocks=RING_BLOCKS,
    )  # fmt: skip
    assert 0 < spread.max_gradient_difference <= 2 * alone.max_gradient_difference
    assert spread.max_loss_difference <= 2 * alone.max_loss_difference + 1e-3


@pytest.mark.parametrize("channel", ["r0.s0.ring", "r0.boundary0.forward"])
def test_one_wrong_message_shows(monkeypatch: pytest.MonkeyPatch, channel: str) -> None:
    """The comparison can fail: one element of one message is off by a thousandth."""
    original = virtual._copy
    spoiled: list[str] = []

    def spoiling(rank: int, message: Message, partner: Message) -> None:
        original(rank, message, partner)
        if message.channel == channel and not spoiled:
            spoiled.append(channel)
            (partner if message.is_send else message).payload[0] += 1e-3

    monkeypatch.setattr(virtual, "_copy", spoiling)
    proof = verify_virtual(*CASES["ring_of_groups"](), ring_blocks=RING_BLOCKS)
    assert spoiled
    assert not proof.ok(1e-8)

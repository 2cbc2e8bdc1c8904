"""Compiled programs compute attention exactly once, whatever the shards and heads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from hexisolve.data.instance import Instance
from hexisolve.errors import UnsupportedPlanError
from hexisolve.plan.plan import BatchPlan, Chunk, Plan, ReplicaBatch, Slice
from hexisolve.program import instructions as ins
from hexisolve.program.compile import compile_plan
from hexisolve.program.layer_programs import KEPT
from hexisolve.program.match import match
from hexisolve.program.rank_program import Call, Programs, expand
from tests.plans import CASES, TWO_STAGES, large, make, ring_of_groups, tiny_model
from tests.program.mutants import edit_template, ring_template
from tests.program.token_machine import TokenMachine

RINGS = ("ring_of_groups", "split_kv_group", "packed_documents", "tiny_shards")


def prove(programs: Programs, window: int | None = None) -> None:
    """Match, then run on token numbers."""
    assert match(programs).problems == ()
    machine = TokenMachine(programs, window)
    machine.run()
    per_layer = sum(programs.sequence_lengths)
    assert machine.checked_rows >= per_layer * programs.instance.model.num_layers


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_query_meets_every_key_once(name: str) -> None:
    prove(compile_plan(*CASES[name](), ring_blocks=5))


@pytest.mark.parametrize("ring_blocks", [1, 64])
@pytest.mark.parametrize("name", RINGS)
def test_block_size_does_not_matter(name: str, ring_blocks: int) -> None:
    prove(compile_plan(*CASES[name](), ring_blocks=ring_blocks))


def test_the_proof_notices_a_missing_pair() -> None:
    programs = compile_plan(*ring_of_groups())
    rank, name = ring_template(programs)

    def forget(instructions):  # type: ignore[no-untyped-def]
        items = list(instructions)
        where = next(i for i, item in enumerate(items) if isinstance(item, ins.AttnBlock))
        items[where] = ins.AttnBlock(items[where].pairs[1:])
        return items

    mutant = edit_template(programs, rank, name, forget)
    with pytest.raises(AssertionError):
        TokenMachine(mutant).run()


@pytest.mark.parametrize("window", [1, 3, 8])
def test_sliding_window_across_shard_edges(window: int) -> None:
    model = tiny_model()
    layers = tuple(
        replace(la, attention=replace(la.attention, kind="sliding", window_tokens=window))
        for la in model.layers
    )
    instance, plan = make(TWO_STAGES, [[0], [1]], [37, 22], model=replace(model, layers=layers))
    prove(compile_plan(instance, plan, ring_blocks=6), window)


def test_mixed_layer_kinds_have_their_own_templates() -> None:
    model = tiny_model()
    sliding = replace(model.layers[1].attention, kind="sliding", window_tokens=5)
    layers = (model.layers[0], replace(model.layers[1], attention=sliding), *model.layers[2:])
    instance, plan = make(TWO_STAGES, [[0]], [21], model=replace(model, layers=layers))
    program = compile_plan(instance, plan).ranks[0]
    calls = [item for item in program.body if isinstance(item, Call)]
    assert [call.layers for call in calls] == [(0, 1), (1, 2), (2, 3), (2, 3), (1, 2), (0, 1)]
    assert len(program.templates) == 4


def test_full_attention() -> None:
    instance, plan = ring_of_groups(attention="full")
    prove(compile_plan(instance, plan, ring_blocks=4))


@pytest.mark.parametrize(
    ("num_q_heads", "num_kv_heads", "heads"),
    [
        (12, 4, [3, 2, 2, 2, 3]),
        (7, 7, [2, 2, 2, 1]),
        (20, 5, [3, 2, 3, 2, 3, 2, 3, 2]),
        (28, 4, [4, 3, 4, 3, 4, 3, 4, 3]),
        (6, 3, [3, 3]),
        (6, 3, [4, 2]),
        (8, 1, [8, 0, 0]),
    ],
)
def test_indivisible_heads(num_q_heads: int, num_kv_heads: int, heads: list[int]) -> None:
    """Any split of heads is exact, also 40 over 16; KV heads on two ranks are summed."""
    edges = [sum(heads[:idx]) for idx in range(len(heads) + 1)]
    ranges = [(edges[i], edges[i + 1]) for i in range(len(heads))]
    model = tiny_model(2, num_q_heads, num_kv_heads, hidden_size=4 * num_q_heads)
    one = [(2 + idx % 3, own) for idx, own in enumerate(ranges)]
    other = [(1, own) for own in reversed(ranges)]
    instance, plan = make([((0, 2), [one, other])], [[0]], [37], model=model)
    programs = compile_plan(instance, plan, ring_blocks=4)
    prove(programs)
    # No rank has query heads and no KV head (field case 4).
    opens = [i for p in programs.ranks for i, _, _ in expand(p) if isinstance(i, ins.AttnOpen)]
    for item in opens:
        assert (item.q_heads[0] < item.q_heads[1]) == (item.kv_heads[0] < item.kv_heads[1])


@pytest.mark.parametrize("degree", [2, 3, 4])
def test_lengths_that_divide_by_nothing(degree: int) -> None:
    """Lengths 1..64 in one batch: every token once, supervised tokens in = counted."""
    lengths = list(range(1, 65))
    groups = [[(1, (0, 6))]] * degree
    packs = [list(range(first, 64, 8)) for first in range(8)]
    instance, plan = make([((0, 1), groups)], packs, lengths, model=tiny_model(1))
    programs = compile_plan(instance, plan, ring_blocks=8)
    prove(programs)
    assert programs.supervised_tokens == sum(length - 1 for length in lengths)
    held = Counter(
        (piece.sequence, position)
        for program in programs.ranks
        for shard in program.shards
        for piece in shard.pieces
        for position in range(piece.start, piece.stop)
    )
    assert set(held.values()) == {1}
    assert len(held) == sum(lengths)


@pytest.mark.parametrize(("tokens", "ranks"), [(2999, 4), (7, 2), (1, 4), (2, 3)])
def test_field_lengths_are_covered(tokens: int, ranks: int) -> None:
    instance, plan = make([((0, 1), [[(1, (0, 6))]] * ranks)], [[0]], [tokens], model=tiny_model(1))
    programs = compile_plan(instance, plan, ring_blocks=4)
    assert match(programs).ok
    assert sum(program.shards[0].num_rows for program in programs.ranks) == tokens


def test_compiling_another_plan_first_changes_nothing() -> None:
    """Field case 6."""
    other, ring = CASES["packed_documents"](), CASES["ring_of_groups"]
    alone = compile_plan(*ring())
    compile_plan(*other)
    again = compile_plan(*ring())
    assert again.ranks == alone.ranks
    assert again.channels == alone.channels
    assert again.digest == alone.digest


def test_digest_tells_programs_apart() -> None:
    digests = {
        compile_plan(*CASES[name](), ring_blocks=blocks).digest
        for name in ("two_stages", "recompute_full", "tied")
        for blocks in (1, 64)
    }
    assert len(digests) == 6


def test_equal_chunks_share_templates() -> None:
    instance, plan = large(num_ranks=8, num_stages=2, num_layers=8, num_chunks=5)
    for program in compile_plan(instance, plan).ranks:
        # One shape and one kind: two policies, forward and backward.
        assert len(program.templates) == 4


def test_packed_chunk_shapes_are_shared_too() -> None:
    first = ((0, 4), [[(1, (0, 6))], [(1, (0, 6))]])
    instance, plan = make([first], [[0, 1], [2, 3], [5, 4]], [9, 5, 9, 5, 5, 9])
    programs = compile_plan(instance, plan)
    assert len(programs.ranks[0].templates) == 2
    prove(programs)


@pytest.mark.parametrize("policy", ["none", "mlp", "layer", "full"])
def test_recompute_repeats_what_was_dropped(policy: str) -> None:
    programs = compile_plan(*ring_of_groups(recompute=policy))
    template = next(t for t in programs.ranks[0].templates.values() if t.phase == "backward")
    kinds = Counter(type(item).__name__ for item in template.instructions)
    assert kinds["Pre"] == (policy in ("layer", "full"))
    assert kinds["Post"] == (policy != "none")
    assert kinds["AttnOpen"] == (policy == "full")
    forward = next(t for t in programs.ranks[0].templates.values() if t.phase == "forward")
    (keep,) = [item for item in forward.instructions if isinstance(item, ins.Keep)]
    assert keep.buffers == KEPT[policy]  # type: ignore[index]


def test_mixed_policies_run_in_layer_order() -> None:
    instance, plan = make(TWO_STAGES, [[0]], [30])
    (batch,) = plan.batch.replicas
    (pipeline,) = batch.pipelines
    mixed = replace(pipeline, recompute=(({"full": 1, "layer": 2},), ({"none": 1},)))
    program = compile_plan(
        instance, replace(plan, batch=BatchPlan((ReplicaBatch((mixed,)),)))
    ).ranks[0]
    runs = [
        (item.layers, item.template.split(".")[4], item.phase)
        for item in program.body
        if isinstance(item, Call)
    ]
    assert runs == [
        ((0, 1), "full", "forward"),
        ((1, 3), "layer", "forward"),
        ((1, 3), "layer", "backward"),
        ((0, 1), "full", "backward"),
    ]


def test_offloaded_layers_are_fetched_before_their_backward() -> None:
    instance, plan = make(TWO_STAGES, [[0]], [30], recompute="layer")
    (batch,) = plan.batch.replicas
    (pipeline,) = batch.pipelines
    pipeline = replace(pipeline, offload=((2,), (0,)))
    program = compile_plan(
        instance, replace(plan, batch=BatchPlan((ReplicaBatch((pipeline,)),)))
    ).ranks[0]
    moved = [
        (type(item).__name__, layer)
        for item, _, layer in expand(program)
        if isinstance(item, ins.Offload | ins.Fetch)
    ]
    assert moved == [("Offload", 0), ("Offload", 1), ("Fetch", 1), ("Fetch", 0)]


def changed(plan: Plan, **stage_changes: object) -> Plan:
    (replica,) = plan.layout.replicas
    stages = tuple(replace(stage, **stage_changes) for stage in replica.stages)  # type: ignore[arg-type]
    return replace(plan, layout=replace(plan.layout, replicas=(replace(replica, stages=stages),)))


def sliced(instance: Instance, plan: Plan) -> Plan:
    """The same batch with its first sequence cut in two chunks."""
    (batch,) = plan.batch.replicas
    (pipeline,) = batch.pipelines
    first = pipeline.chunks[0].slices[0]
    parts = (Chunk((Slice(0, 0, 5),)), Chunk((Slice(0, 5, first.stop),)), *pipeline.chunks[1:])
    return replace(plan, batch=BatchPlan((ReplicaBatch((replace(pipeline, chunks=parts),)),)))


def test_what_cannot_be_compiled_is_refused_by_name() -> None:
    instance, plan = CASES["two_stages"]()
    with pytest.raises(UnsupportedPlanError) as caught:
        compile_plan(instance, sliced(instance, changed(plan, ring_kind="q")))
    text = str(caught.value)
    assert "stage 1: rings in which q travels" in text
    assert "tokens 0..5 of sequence 0 (37 long): slices" in text
    assert "tokens 5..37" in text


def test_sliding_window_with_full_attention_is_refused() -> None:
    model = tiny_model()
    layer = model.layers[0]
    sliding = replace(layer, attention=replace(layer.attention, window_tokens=4))
    model = replace(model, layers=(sliding, *model.layers[1:]))
    instance, plan = make(TWO_STAGES, [[0]], [30], model=model, attention="full")
    with pytest.raises(UnsupportedPlanError, match="sliding windows"):
        compile_plan(instance, plan)


def test_explicit_pieces_are_followed() -> None:
    instance, plan = make([((0, 4), [[(1, (0, 6))], [(1, (0, 6))]])], [[0]], [20])
    (batch,) = plan.batch.replicas
    (pipeline,) = batch.pipelines
    pieces = (((Slice(0, 0, 3), Slice(0, 11, 20)), (Slice(0, 3, 11),)),)
    chunk = replace(pipeline.chunks[0], pieces=pieces)
    given = replace(pipeline, chunks=(chunk,))
    programs = compile_plan(
        instance, replace(plan, batch=BatchPlan((ReplicaBatch((given,)),))), ring_blocks=3
    )
    assert programs.ranks[0].shards[0].pieces == pieces[0][0]
    prove(programs)


def test_ring_blocks_must_be_positive() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        compile_plan(*CASES["one_rank"](), ring_blocks=0)


def test_large_plans_compile_and_match() -> None:
    """32 ranks, 40 layers, 8 chunks, unreduced."""
    instance, plan = large(num_ranks=32, num_stages=2)
    report = match(compile_plan(instance, plan))
    assert report.ok
    assert report.num_transfers > 500_000


@pytest.mark.slow
@pytest.mark.parametrize("num_groups", [4, 32])
def test_128_ranks_compile_and_match(num_groups: int) -> None:
    instance, plan = large(num_groups=num_groups)
    assert match(compile_plan(instance, plan)).ok

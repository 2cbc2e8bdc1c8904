"""A miniature of a plan: the same structure, small enough to run on one core.

Kept: replicas, stages, rings, head groups, query and KV heads, state shares, order of chunks and
pieces, schedule, which recompute policies a stage mixes. Reduced: tokens, widths, vocabulary,
experts, layers per stage, number of chunks and of blocks per ring. The miniature is itself a plan
for its own instance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import ModelSpec, llama_like
from hexisolve.plan.pieces import split_tokens, stage_pieces
from hexisolve.plan.plan import (
    POLICY_ORDER,
    BatchPlan,
    Chunk,
    HeadGroup,
    Layout,
    Pipeline,
    Plan,
    Policy,
    Replica,
    ReplicaBatch,
    Slice,
    Stage,
)
from hexisolve.plan.schedule import parse_operation
from hexisolve.program.compile import DEFAULT_RING_BLOCKS
from hexisolve.program.supported import refuse_slices

CHUNK_TOKENS = 256
HEAD_DIM = 2
VOCABULARY = 64
LAYERS_PER_STAGE = 2
RING_BLOCKS = 8
REDUCTIONS = ("tokens", "widths", "layers", "chunks", "blocks")
"""What `miniature` reduces and `keep` can lift."""


@dataclass(frozen=True)
class Miniature:
    """A reduced instance and plan; unpacks as ``instance, plan``.

    Parameters
    ----------
    reductions
        What was reduced, in words.
    ring_blocks
        Blocks of KV per ring to compile it with.
    """

    instance: Instance
    plan: Plan
    reductions: tuple[str, ...]
    ring_blocks: int

    def __iter__(self) -> Iterator[Instance | Plan]:
        yield self.instance
        yield self.plan


def miniature(instance: Instance, plan: Plan, *, keep: Collection[str] = ()) -> Miniature:
    """Reduce a legal plan to one that runs on a laptop and is built in the same way.

    Parameters
    ----------
    keep
        Reductions to leave out, of `REDUCTIONS`.

    Raises
    ------
    ValueError
        When `keep` names something else.
    UnsupportedPlanError
        When the plan cuts sequences in slices.
    """
    unknown = sorted(set(keep) - set(REDUCTIONS))
    if unknown:
        raise ValueError(f"cannot keep {unknown}; choose from {', '.join(REDUCTIONS)}")
    refuse_slices(instance, plan)
    batch = plan.batch if "chunks" in keep else _fewer_chunks(plan)
    layout, batch, lengths = _fewer_tokens(plan.layout, batch, is_kept="tokens" in keep)
    if "layers" not in keep:
        layout, batch = _fewer_layers(layout, batch)
    model = _small_model(instance.model, layout, keeps_widths="widths" in keep)
    workload = replace(
        instance.workload,
        context_tokens=None,
        batch_sequences=None,
        lengths=lengths,
        block_tokens=1,
    )
    small = replace(instance, model=model, workload=workload)
    small_plan = Plan(layout, batch)
    ring_blocks = DEFAULT_RING_BLOCKS if "blocks" in keep else RING_BLOCKS
    told = list(_told(instance, plan, small, small_plan))
    if ring_blocks < DEFAULT_RING_BLOCKS and any(
        len(stage.ring) > 1 for _, _, stage in layout.stages()
    ):
        told.append(f"blocks per ring {DEFAULT_RING_BLOCKS} -> {ring_blocks}, or one per group")
    return Miniature(small, small_plan, tuple(told), ring_blocks)


def _fewer_chunks(plan: Plan) -> BatchPlan:
    """Keep the first min(n, P + 2) chunks of every pipeline."""
    replicas = []
    for replica, batch in zip(plan.layout.replicas, plan.batch.replicas, strict=True):
        pipelines = []
        for pipeline in batch.pipelines:
            num_kept = min(len(pipeline.chunks), len(replica.stages) + 2)
            pipelines.append(
                Pipeline(
                    pipeline.chunks[:num_kept],
                    tuple(
                        tuple(text for text in row if parse_operation(text)[1] < num_kept)
                        for row in pipeline.schedule
                    ),
                    tuple(row[:num_kept] for row in pipeline.recompute),
                    tuple(row[:num_kept] for row in pipeline.offload),
                )
            )
        replicas.append(ReplicaBatch(tuple(pipelines)))
    return BatchPlan(tuple(replicas))


def _fewer_tokens(
    layout: Layout, batch: BatchPlan, *, is_kept: bool
) -> tuple[Layout, BatchPlan, tuple[int, ...]]:
    """Scale chunks and shares; renumber the sequences that are left.

    The largest chunk gets `CHUNK_TOKENS`, or one token per piece if that is more; the others keep
    their proportion to it. No share that has tokens of the largest chunk loses all of them.
    """
    replicas, new_layout = [], []
    sizes: dict[int, int] = {}
    for replica, own in zip(layout.replicas, batch.replicas, strict=True):
        chunks = [chunk for pipeline in own.pipelines for chunk in pipeline.chunks]
        pieces = {
            chunk: [_piece_counts(stage, chunk, idx) for idx, stage in enumerate(replica.stages)]
            for chunk in dict.fromkeys(chunks)
        }
        most_pieces = max(sum(counts) for stages in pieces.values() for counts in stages)
        largest = max(chunk.num_tokens for chunk in chunks)
        target = largest if is_kept else min(largest, max(CHUNK_TOKENS, most_pieces))
        scaled: dict[Chunk, Chunk] = {}
        for chunk in pieces:
            num_pieces = max(sum(counts) for counts in pieces[chunk])
            wanted = max(num_pieces, round(chunk.num_tokens * target / largest))
            scaled[chunk] = _scaled_chunk(chunk, min(chunk.num_tokens, wanted))
            for part in scaled[chunk].slices:
                sizes[part.sequence] = max(sizes.get(part.sequence, 0), part.stop)
        stages = list(replica.stages)
        if target < largest:
            for idx, stage in enumerate(stages):
                least = [
                    max(column) for column in zip(*(p[idx] for p in pieces.values()), strict=True)
                ]
                stages[idx] = _scaled_shares(stage, target, least)
        new_layout.append(Replica(tuple(stages)))
        replicas.append([[scaled[chunk] for chunk in p.chunks] for p in own.pipelines])
    numbers = {sequence: number for number, sequence in enumerate(sorted(sizes))}
    renumbered = tuple(
        ReplicaBatch(
            tuple(
                replace(pipeline, chunks=tuple(_renumbered(chunk, numbers) for chunk in chunks))
                for pipeline, chunks in zip(own.pipelines, pipelines, strict=True)
            )
        )
        for own, pipelines in zip(batch.replicas, replicas, strict=True)
    )
    lengths = tuple(sizes[sequence] for sequence in sorted(sizes))
    return Layout(tuple(new_layout)), BatchPlan(renumbered), lengths


def _piece_counts(stage: Stage, chunk: Chunk, stage_idx: int) -> list[int]:
    """Non-empty pieces of every rank."""
    return [len(own) for group in stage_pieces(stage, chunk, stage_idx) for own in group]


def _scaled_chunk(chunk: Chunk, num_tokens: int) -> Chunk:
    """The chunk with `num_tokens` tokens; explicit pieces keep their order and stay non-empty."""
    if num_tokens == chunk.num_tokens:
        return chunk
    cuts = sorted(
        {
            (part.sequence, edge)
            for own in (chunk.slices, *(p for stage in chunk.pieces or () for p in stage))
            for part in own
            for edge in (part.start, part.stop)
        }
    )
    spans = [
        (sequence, low, high)
        for (sequence, low), (other, high) in pairwise(cuts)
        if sequence == other
    ]
    widths = [high - low for _, low, high in spans]
    sizes = _split_with_least(max(num_tokens, len(spans)), widths, [1] * len(spans))
    moved: dict[tuple[int, int], int] = {}
    for (sequence, low, high), size in zip(spans, sizes, strict=True):
        start = moved.setdefault((sequence, low), 0)
        moved[(sequence, high)] = start + size

    def move(parts: Sequence[Slice]) -> tuple[Slice, ...]:
        return tuple(
            Slice(p.sequence, moved[(p.sequence, p.start)], moved[(p.sequence, p.stop)])
            for p in parts
        )

    pieces = chunk.pieces and tuple(tuple(move(own) for own in stage) for stage in chunk.pieces)
    return Chunk(move(chunk.slices), pieces)


def _split_with_least(
    num_tokens: int, weights: Sequence[int], least: Sequence[int]
) -> tuple[int, ...]:
    """Split in proportion, but none below its `least`; the largest give what is missing.

    >>> _split_with_least(10, [97, 1, 2, 0], [1, 1, 2, 0])
    (7, 1, 2, 0)
    """
    counts = list(split_tokens(num_tokens, weights))
    for idx, minimum in enumerate(least):
        while counts[idx] < minimum:
            giver = max(range(len(counts)), key=lambda i: (counts[i] - least[i], -i))
            if counts[giver] <= least[giver]:
                return tuple(counts)
            counts[giver] -= 1
            counts[idx] += 1
    return tuple(counts)


def _scaled_shares(stage: Stage, num_tokens: int, least: Sequence[int]) -> Stage:
    """Token weights that are the counts of the largest chunk."""
    weights = [rank.tokens for rank in stage.ranks]
    counts = iter(_split_with_least(num_tokens, weights, least))
    ring = tuple(
        HeadGroup(tuple(replace(rank, tokens=next(counts)) for rank in group.ranks))
        for group in stage.ring
    )
    return replace(stage, ring=ring)


def _renumbered(chunk: Chunk, numbers: Mapping[int, int]) -> Chunk:
    def renumber(parts: Sequence[Slice]) -> tuple[Slice, ...]:
        return tuple(replace(part, sequence=numbers[part.sequence]) for part in parts)

    pieces = chunk.pieces and tuple(tuple(renumber(p) for p in own) for own in chunk.pieces)
    return Chunk(renumber(chunk.slices), pieces)


def _fewer_layers(layout: Layout, batch: BatchPlan) -> tuple[Layout, BatchPlan]:
    """At most `LAYERS_PER_STAGE` layers a stage, or one per recompute policy it mixes."""
    replicas, batches = [], []
    for replica, own in zip(layout.replicas, batch.replicas, strict=True):
        stages, first = [], 0
        for stage_idx, stage in enumerate(replica.stages):
            mixed = max(
                sum(count > 0 for count in counts.values())
                for pipeline in own.pipelines
                for counts in pipeline.recompute[stage_idx]
            )
            num_layers = min(stage.num_layers, max(LAYERS_PER_STAGE, mixed))
            stages.append(replace(stage, layers=(first, first + num_layers)))
            first += num_layers
        replicas.append(Replica(tuple(stages)))
        batches.append(
            ReplicaBatch(tuple(_fewer_policies(p, replica.stages, stages) for p in own.pipelines))
        )
    if len({replica.stages[-1].layers[1] for replica in replicas}) > 1:
        # Replicas of unlike depth would no longer hold one model: keep all layers.
        return layout, batch
    return Layout(tuple(replicas)), BatchPlan(tuple(batches))


def _fewer_policies(
    pipeline: Pipeline, stages: Sequence[Stage], small: Sequence[Stage]
) -> Pipeline:
    recompute = tuple(
        tuple(_scaled_policies(counts, stage.num_layers) for counts in row)
        for row, stage in zip(pipeline.recompute, small, strict=True)
    )
    offload = tuple(
        tuple(-(-count * new.num_layers // old.num_layers) for count in row)
        for row, old, new in zip(pipeline.offload, stages, small, strict=False)
    )
    return replace(pipeline, recompute=recompute, offload=offload)


def _scaled_policies(counts: Mapping[Policy, int], num_layers: int) -> dict[Policy, int]:
    used = [policy for policy in POLICY_ORDER if counts.get(policy, 0)]
    weights = [counts[policy] for policy in used]
    sizes = _split_with_least(num_layers, weights, [1] * len(used))
    return dict(zip(used, sizes, strict=True))


def _small_model(model: ModelSpec, layout: Layout, *, keeps_widths: bool) -> ModelSpec:
    """A Llama with the model's heads and as many layers as the layout has."""
    num_layers = layout.replicas[0].stages[-1].layers[1]
    if keeps_widths and num_layers == model.num_layers:
        return model
    attention = model.layers[0].attention
    num_heads = attention.num_q_heads
    if keeps_widths:
        hidden_size, inner_size = model.hidden_size, model.layers[0].mlp.intermediate_size
        head_dim, vocabulary = attention.qk_head_dim, model.vocab_size
    else:
        hidden_size, inner_size = HEAD_DIM * num_heads, 2 * HEAD_DIM * num_heads
        head_dim, vocabulary = HEAD_DIM, VOCABULARY
    return llama_like(
        f"{model.name} (miniature)",
        hidden_size,
        num_layers,
        num_heads,
        attention.num_kv_heads,
        inner_size,
        vocabulary,
        head_dim=head_dim,
        tied_embeddings=model.tied_embeddings,
    )


def _told(instance: Instance, plan: Plan, small: Instance, small_plan: Plan) -> Iterator[str]:
    """Say what is smaller than before."""
    old, new = instance.model, small.model

    def chunks(of: Plan) -> list[Chunk]:
        return [c for own in of.batch.replicas for p in own.pipelines for c in p.chunks]

    def largest(of: Plan) -> int:
        return max(chunk.num_tokens for chunk in chunks(of))

    def shape(model: ModelSpec) -> tuple[int, int, int, int]:
        first = model.layers[0]
        inner = first.mlp.intermediate_size
        return first.attention.qk_head_dim, model.hidden_size, inner, model.vocab_size

    pairs = [
        ("tokens of the largest chunk", largest(plan), largest(small_plan)),
        ("chunks", len(chunks(plan)), len(chunks(small_plan))),
        ("layers", old.num_layers, new.num_layers),
        *(
            (name, before, after)
            for name, before, after in zip(
                ("head width", "hidden size", "feed-forward width", "vocabulary"),
                shape(old),
                shape(new),
                strict=True,
            )
        ),
    ]
    yield from (f"{name} {before} -> {after}" for name, before, after in pairs if before != after)
    if new is not old:
        if any(layer.mlp.kind == "moe" for layer in old.layers):
            yield "experts: a dense feed-forward instead (experts send nothing between ranks)"
        if any(layer.attention.window_tokens for layer in old.layers):
            yield "sliding windows: full causal attention instead"
        if any(layer.attention.kv_latent_dim for layer in old.layers):
            yield "compressed K and V: plain heads instead"

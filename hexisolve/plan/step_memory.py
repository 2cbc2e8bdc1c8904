"""Bytes on every rank of a stage at its peak (equation 11 of docs/cost-model.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hexisolve.cost.collectives import shares_of
from hexisolve.cost.memory import (
    RankShare,
    backward_transient_bytes,
    boundary_buffer_bytes,
    exchange_buffer_bytes,
    kept_bytes,
    kv_kept_bytes,
    logits_bytes,
    prefix_gradient_bytes,
    ring_buffer_bytes,
    states_bytes,
    usable_bytes,
)
from hexisolve.data.model_spec import LayerSpec
from hexisolve.plan.attention_traffic import num_kv_heads
from hexisolve.plan.plan import (
    POLICY_ORDER,
    Layout,
    Pipeline,
    Policy,
    Replica,
    Stage,
    layer_policies,
)
from hexisolve.plan.price_book import PriceBook
from hexisolve.plan.stage_price import stage_blocks, tokens_of
from hexisolve.plan.synchronise import stage_parameters
from hexisolve.plan.tokens import ChunkShape, chunk_shape


@dataclass(frozen=True)
class MemoryItems:
    """Bytes on one device at its peak, item by item.

    Parameters
    ----------
    states
        Weights, gradients, optimizer state.
    activations
        Kept between forward and backward, all live chunks.
    kv
        K, V of slices that later slices read, and dK, dV of earlier ones.
    transient
        One layer's backward.
    buffers
        Exchanges, ring blocks, boundary transfers, gathered weights.
    logits
        One tile of the loss.
    reserve
        Context, libraries, process groups and fragmentation: capacity minus usable.
    """

    states: int
    activations: int
    kv: int
    transient: int
    buffers: int
    logits: int
    reserve: int

    @property
    def needed_bytes(self) -> int:
        """All items but the reserve: what must fit in the usable bytes."""
        return (
            self.states + self.activations + self.kv
            + self.transient + self.buffers + self.logits
        )  # fmt: skip


class ChunkMemory(NamedTuple):
    """What one chunk costs every rank of a stage, in bytes per rank.

    Parameters
    ----------
    kept
        Activations between forward and backward, offloaded layers left out.
    offloaded
        Activations that wait in host memory instead.
    kv
        K, V of slices that are read by later ones, in layers that do not keep them anyway.
    kv_gradients
        dK, dV of those slices in all layers.
    working
        Transient, buffers and logits of the chunk's backward.
    """

    kept: tuple[int, ...]
    offloaded: tuple[int, ...]
    kv: tuple[int, ...]
    kv_gradients: tuple[int, ...]
    working: tuple[tuple[int, int, int], ...]


def stage_memory(
    book: PriceBook, layout: Layout, replica_idx: int, stage_idx: int, pipelines: Sequence[Pipeline]
) -> tuple[MemoryItems, ...]:
    """Memory of every rank of a stage at its peak over the step."""
    replica = layout.replicas[replica_idx]
    stage = replica.stages[stage_idx]
    num_stages = len(replica.stages)
    num_peers = peers(replica, stage_idx)
    parameters = stage_parameters(book, stage, stage_idx, num_stages)
    shares = shares_of([rank.state_share for rank in stage.ranks])
    cost = book.instance.cost
    peaks = [(0, 0, 0, 0, 0) for _ in stage.ranks]
    for pipeline in pipelines:
        found = _pipeline_peaks(book, stage, stage_idx, num_stages, pipeline)
        peaks = [max(old, new, key=sum) for old, new in zip(peaks, found, strict=True)]
    result = []
    for rank, share, peak in zip(stage.ranks, shares, peaks, strict=True):
        states = states_bytes(parameters, share, stage.zero, stage.zero3_gradients, book.e, cost)
        capacity = book.instance.cluster.device(rank.device).memory_bytes
        reserve = capacity - usable_bytes(capacity, num_peers, cost)
        result.append(MemoryItems(-int(-states // 1), *peak, reserve))
    return tuple(result)


def peers(replica: Replica, stage_idx: int) -> int:
    """Ranks a rank of the stage shares a process group with: its stage and the neighbours'."""
    neighbours = replica.stages[max(stage_idx - 1, 0) : stage_idx + 2]
    return sum(len(stage.ranks) for stage in neighbours) - 1


def _pipeline_peaks(
    book: PriceBook, stage: Stage, stage_idx: int, num_stages: int, pipeline: Pipeline
) -> list[tuple[int, int, int, int, int]]:
    """(activations, kv, transient, buffers, logits) of every rank at its worst start of a B."""
    memories = chunk_memories(book, stage, stage_idx, num_stages, pipeline)
    earlier = earlier_slices(pipeline)
    num_ranks = len(stage.ranks)
    kept, kv = [0] * num_ranks, [0] * num_ranks
    waiting: set[int] = set()  # chunks whose dK, dV are being summed
    worst = [(0, 0, 0, 0, 0)] * num_ranks
    worst_sum = [-1] * num_ranks
    for operation in pipeline.schedule[stage_idx]:
        chunk_idx = int(operation[1:])
        memory = memories[chunk_idx]
        sign = 1 if operation[0] == "F" else -1
        if sign < 0:
            for other in earlier[chunk_idx] - waiting:
                waiting.add(other)
                kv = [a + b for a, b in zip(kv, memories[other].kv_gradients, strict=True)]
            for idx in range(num_ranks):
                transient, buffers, logits = memory.working[idx]
                total = kept[idx] + kv[idx] + transient + buffers + logits
                if total > worst_sum[idx]:
                    worst_sum[idx] = total
                    worst[idx] = (kept[idx], kv[idx], transient, buffers, logits)
            if chunk_idx in waiting:
                waiting.remove(chunk_idx)
                kv = [a - b for a, b in zip(kv, memory.kv_gradients, strict=True)]
        kept = [a + sign * b for a, b in zip(kept, memory.kept, strict=True)]
        kv = [a + sign * b for a, b in zip(kv, memory.kv, strict=True)]
    return worst


def earlier_slices(pipeline: Pipeline) -> list[set[int]]:
    """For every chunk, the chunks that hold earlier slices of its sequences."""
    holders: dict[int, list[tuple[int, int]]] = {}
    for idx, chunk in enumerate(pipeline.chunks):
        for part in chunk.slices:
            holders.setdefault(part.sequence, []).append((part.start, idx))
    return [
        {
            other
            for part in chunk.slices
            if part.start
            for start, other in holders[part.sequence]
            if start < part.start
        }
        for chunk in pipeline.chunks
    ]


def chunk_memories(
    book: PriceBook, stage: Stage, stage_idx: int, num_stages: int, pipeline: Pipeline
) -> list[ChunkMemory]:
    """Memory of every chunk of a pipeline on a stage."""
    last: dict[int, int] = {}
    for chunk in pipeline.chunks:
        for part in chunk.slices:
            last[part.sequence] = max(last.get(part.sequence, 0), part.start)
    offload = pipeline.offload[stage_idx] if pipeline.offload else [0] * len(pipeline.chunks)
    result = []
    for idx, chunk in enumerate(pipeline.chunks):
        followed = tuple(part.start < last[part.sequence] for part in chunk.slices)
        recompute = pipeline.recompute[stage_idx][idx]
        result.append(
            chunk_memory(
                book, stage, stage_idx, num_stages, chunk_shape(chunk), recompute,
                followed, offload[idx],
            )
        )  # fmt: skip
    return result


def chunk_memory(
    book: PriceBook,
    stage: Stage,
    stage_idx: int,
    num_stages: int,
    shape: ChunkShape,
    recompute: Mapping[Policy, int],
    followed: tuple[bool, ...] = (),
    offload: int = 0,
) -> ChunkMemory:
    """Memory of one chunk on a stage; `followed` marks slices that later slices read."""
    counts = tuple(recompute.get(policy, 0) for policy in POLICY_ORDER)
    followed = followed if any(followed) else ()
    ends = (stage_idx == 0, stage_idx == num_stages - 1)
    position = stage_idx if shape[1] is not None else -1
    key = ("memory", book.stage_key(stage), ends, position, shape, counts, followed, offload)
    known: ChunkMemory | None = book.entries.get(key)
    if known is None:
        policies = layer_policies(recompute)
        known = _chunk_memory(
            book, stage, stage_idx, num_stages, shape, policies, followed, offload
        )
        book.entries[key] = known
    return known


def _chunk_memory(
    book: PriceBook,
    stage: Stage,
    stage_idx: int,
    num_stages: int,
    shape: ChunkShape,
    policies: tuple[Policy, ...],
    followed: tuple[bool, ...],
    offload: int,
) -> ChunkMemory:
    model, e, cost = book.instance.model, book.e, book.instance.cost
    hidden, e_acc = model.hidden_size, cost.accumulator_bytes
    tokens = tokens_of(book, stage, stage_idx, shape)
    layers = _counted(model.layers[slice(*stage.layers)], policies, offload)
    gathered = gathered_bytes(book, stage, stage_idx, num_stages)
    context = max((part.stop for part in tokens.slices), default=0)
    is_last = stage_idx == num_stages - 1
    kept, offloaded, kv, kv_gradients, working = [], [], [], [], []
    for group_idx, group in enumerate(stage.ring):
        group_tokens = tokens.group_tokens[group_idx]
        read_later = sum(
            owned[group_idx] for owned, is_read in zip(tokens.owned, followed, strict=False)
            if is_read
        )  # fmt: skip
        for rank, num_tokens in zip(group.ranks, tokens.rank_tokens[group_idx], strict=True):
            own = [0, 0, 0, 0.0]
            transient = exchange = around = 0
            for (layer, policy, is_offloaded), count in layers.items():
                k_r = num_kv_heads(rank, layer.attention)
                share = RankShare(num_tokens, group_tokens, rank.num_q_heads, k_r)
                own[int(is_offloaded)] += count * kept_bytes(policy, share, layer, hidden, e)
                if read_later:
                    later = share._replace(group_tokens=read_later)
                    if policy in ("layer", "full"):
                        own[2] += count * kv_kept_bytes(later, layer, e)
                    own[3] += count * prefix_gradient_bytes(later, layer, read_later, e_acc)
                again = backward_transient_bytes(policy, share, layer, hidden, e, e_acc)
                if is_offloaded:
                    again += kept_bytes(policy, share, layer, hidden, e)
                transient = max(transient, again)
                if len(group.ranks) > 1:
                    exchange = max(exchange, exchange_buffer_bytes(share, layer, e))
                if len(stage.ring) > 1:
                    needs = ring_buffer_bytes(context, share, layer, e, e_acc)
                    around = max(around, needs)
            buffers = exchange + around + gathered
            if num_stages > 1:
                buffers += boundary_buffer_bytes(share, hidden, e)
            logits = 0
            if is_last:
                logits = logits_bytes(num_tokens, model.vocab_size, e, cost.logits_tile_tokens)
            kept.append(int(own[0]))
            offloaded.append(int(own[1]))
            kv.append(int(own[2]))
            kv_gradients.append(int(own[3]))
            working.append((transient, buffers, logits))
    return ChunkMemory(
        tuple(kept), tuple(offloaded), tuple(kv), tuple(kv_gradients), tuple(working)
    )


def _counted(
    layers: Sequence[LayerSpec], policies: Sequence[Policy], offload: int
) -> dict[tuple[LayerSpec, Policy, bool], int]:
    """How many layers have the same kind, policy and place; the first ones are offloaded."""
    counts: dict[tuple[LayerSpec, Policy, bool], int] = {}
    for idx, (layer, policy) in enumerate(zip(layers, policies, strict=True)):
        key = (layer, policy, idx < offload)
        counts[key] = counts.get(key, 0) + 1
    return counts


def gathered_bytes(book: PriceBook, stage: Stage, stage_idx: int, num_stages: int) -> int:
    """ZeRO-3: the block that runs and the next one, gathered; and a whole gradient per chunk."""
    if stage.zero != 3 or len(stage.ranks) < 2:
        return 0
    blocks = stage_blocks(book.instance, stage, stage_idx, num_stages)
    sizes = [block.gathered for block in blocks]
    pair = max((a + b for a, b in pairwise(sizes)), default=sizes[0])
    gradient = 0
    if stage.zero3_gradients == "chunk":
        gradient = max(block.parameters for block in blocks) * book.instance.cost.gradient_bytes
    return pair * book.e + gradient

"""Bytes of chunks on every rank of a stage, for all chunks and all steps of recompute at once.

Equation E3 of docs/elastic.md: the numbers of `hexisolve.plan.step_memory` (tested to be equal)
for chunks laid out by the published rule in which a followed slice is alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hexisolve.cost.collectives import shares_of
from hexisolve.cost.memory import (
    RING_BLOCKS,
    RankShare,
    attention_gradient_bytes,
    boundary_buffer_bytes,
    exchange_buffer_bytes,
    kept_bytes,
    kv_kept_bytes,
    logits_bytes,
    mlp_gradient_bytes,
    prefix_gradient_bytes,
    ring_buffer_bytes,
    states_bytes,
    usable_bytes,
)
from hexisolve.data.model_spec import LayerSpec
from hexisolve.formulation.chunk_load import ChunkLoads, IntArray
from hexisolve.formulation.chunk_seconds import LADDER
from hexisolve.plan.attention_traffic import num_kv_heads
from hexisolve.plan.pieces import split_tokens
from hexisolve.plan.plan import POLICY_ORDER, Layout, Policy, Stage, layer_policies
from hexisolve.plan.price_book import PriceBook
from hexisolve.plan.step_memory import gathered_bytes, peers
from hexisolve.plan.synchronise import stage_parameters

_SAFE_PRODUCT = 2**62


def step_counts(num_layers: int, step: int) -> dict[Policy, int]:
    """Layers under each policy after `step` steps down the ladder none, mlp, layer, full.

    Every step takes one layer one policy further; all layers take a policy before any takes the
    next.

    >>> step_counts(3, 4)
    {'mlp': 2, 'layer': 1}
    """
    rung, further = divmod(step, num_layers)
    counts = {LADDER[rung]: num_layers - further}
    if further:
        counts[LADDER[rung + 1]] = further
    return counts


def num_steps(num_layers: int) -> int:
    """Steps from no recompute to all layers ``full``."""
    return (len(LADDER) - 1) * num_layers


@dataclass(frozen=True, eq=False)
class ChunkBytes:
    """Chunks on the ranks of a stage: their tokens, and what does not depend on recompute.

    Parameters
    ----------
    tokens, group_tokens
        ``[chunk, rank]`` s_r and S_g.
    read_later
        S_g of followed slices, 0 of all other chunks.
    transient
        ``[chunk, rank]`` during B, per policy that some layer has.
    working
        Buffers and logits.
    """

    tokens: IntArray
    group_tokens: IntArray
    read_later: IntArray
    transient: dict[Policy, IntArray]
    working: IntArray


@dataclass(frozen=True, eq=False)
class StageBytes:
    """Coefficients of a stage: bytes per token, per rank and step.

    Parameters
    ----------
    num_layers
        l: layers of the stage.
    budget
        ``[rank]`` usable bytes less model states.
    kept_tokens, kept_group
        ``[step, rank]`` kept bytes per own token and per token of the group.
    kv_group
        ``[step, rank]`` K, V of a followed slice per token of the group, in layers that drop them.
    gradients_group
        ``[rank]`` dK, dV of a followed slice per token of the group, all layers.
    layer_kept
        Per policy, ``[own or group, rank]`` kept bytes per token of the layer that keeps most.
    layer_kv
        ``[rank]`` K, V of the layer that has most, per token of the group.
    lay
        From loads to bytes, by the published rule.
    measure
        From given ``(tokens, group_tokens, read_later, context)`` to bytes.
    """

    stage: Stage
    num_layers: int
    budget: IntArray
    kept_tokens: IntArray
    kept_group: IntArray
    kv_group: IntArray
    gradients_group: IntArray
    layer_kept: dict[Policy, IntArray]
    layer_kv: IntArray
    lay: Callable[[ChunkLoads], ChunkBytes]
    measure: Callable[[IntArray, IntArray, IntArray, IntArray], ChunkBytes]

    def held(self, chunks: ChunkBytes, step: int) -> IntArray:
        """``[chunk, rank]`` bytes between F and B when every chunk takes `step` steps."""
        total: IntArray = (
            self.kept_tokens[step] * chunks.tokens
            + self.kept_group[step] * chunks.group_tokens
            + self.kv_group[step] * chunks.read_later
        )
        return total

    def transient(self, chunks: ChunkBytes, step: int) -> IntArray:
        """``[chunk, rank]`` bytes that the B of a chunk needs beside what is held."""
        present = [chunks.transient[policy] for policy in step_counts(self.num_layers, step)]
        largest = present[0] if len(present) == 1 else np.maximum(*present)
        total: IntArray = largest + chunks.working
        return total

    def gradients(self, chunks: ChunkBytes) -> IntArray:
        """``[chunk, rank]`` dK, dV of followed slices."""
        total: IntArray = self.gradients_group * chunks.read_later
        return total


def stage_bytes(book: PriceBook, layout: Layout, replica_idx: int, stage_idx: int) -> StageBytes:
    """Coefficients of one stage of a layout, from the book where they are known."""
    replica = layout.replicas[replica_idx]
    stage = replica.stages[stage_idx]
    num_stages = len(replica.stages)
    num_peers = peers(replica, stage_idx)
    ends = (stage_idx == 0, stage_idx == num_stages - 1)
    key = ("chunk bytes", book.stage_key(stage), ends, num_peers)
    known: StageBytes | None = book.entries.get(key)
    if known is None:
        budget = stage_budget(book, layout, replica_idx, stage_idx)
        known = book.entries[key] = _coefficients(book, stage, stage_idx, num_stages, budget)
    return known


def stage_budget(
    book: PriceBook, layout: Layout, replica_idx: int, stage_idx: int
) -> tuple[int, ...]:
    """Bytes every rank has for a pipeline: usable less model states, negative when none."""
    replica = layout.replicas[replica_idx]
    stage = replica.stages[stage_idx]
    num_peers = peers(replica, stage_idx)
    cost, cluster = book.instance.cost, book.instance.cluster
    parameters = stage_parameters(book, stage, stage_idx, len(replica.stages))
    budget = []
    shares = shares_of([rank.state_share for rank in stage.ranks])
    for rank, share in zip(stage.ranks, shares, strict=True):
        states = states_bytes(parameters, share, stage.zero, stage.zero3_gradients, book.e, cost)
        usable = usable_bytes(cluster.device(rank.device).memory_bytes, num_peers, cost)
        budget.append(usable + int(-states // 1))
    return tuple(budget)


def _coefficients(
    book: PriceBook, stage: Stage, stage_idx: int, num_stages: int, budget: Sequence[int]
) -> StageBytes:
    model, e, e_acc = book.instance.model, book.e, book.instance.cost.accumulator_bytes
    hidden, ranks = model.hidden_size, stage.ranks
    layers = model.layers[slice(*stage.layers)]
    kinds = tuple(dict.fromkeys(layers))
    shape = (len(layers), len(ranks))

    def per_unit(count: Callable[[RankShare, LayerSpec], float], of_group: bool) -> IntArray:
        own = [
            [int(count(_unit(rank, layer, of_group), layer)) for rank in ranks] for layer in kinds
        ]
        rows = dict(zip(kinds, own, strict=True))
        return np.array([rows[layer] for layer in layers], dtype=np.int64).reshape(shape)

    def keeping(policy: Policy, of_group: bool) -> IntArray:
        return per_unit(lambda s, layer: kept_bytes(policy, s, layer, hidden, e), of_group)

    kept = {p: (keeping(p, False), keeping(p, True)) for p in POLICY_ORDER}
    kv = per_unit(lambda s, layer: kv_kept_bytes(s, layer, e), True)
    nothing = np.zeros(shape, dtype=np.int64)
    steps = [
        layer_policies(step_counts(len(layers), step)) for step in range(num_steps(len(layers)) + 1)
    ]

    def summed(tables: dict[Policy, IntArray]) -> IntArray:
        """``[step, rank]``: over the layers, each with the policy it has at the step."""
        sums = {p: np.cumsum(np.vstack([nothing[:1], t]), axis=0) for p, t in tables.items()}
        result = np.zeros((len(steps), len(ranks)), dtype=np.int64)
        for row, policies in zip(result, steps, strict=True):
            for policy in dict.fromkeys(policies):
                first = policies.index(policy)
                row += sums[policy][first + policies.count(policy)] - sums[policy][first]
        return result

    dropped: tuple[Policy, ...] = ("layer", "full")
    lay, measure = _layer_out(book, stage, stage_idx, num_stages, kinds)
    return StageBytes(
        stage=stage,
        num_layers=len(layers),
        budget=np.array(budget, dtype=np.int64),
        kept_tokens=summed({p: tables[0] for p, tables in kept.items()}),
        kept_group=summed({p: tables[1] for p, tables in kept.items()}),
        kv_group=summed({p: kv if p in dropped else nothing for p in POLICY_ORDER}),
        gradients_group=per_unit(
            lambda s, layer: prefix_gradient_bytes(s, layer, s.group_tokens, e_acc), True
        ).sum(axis=0),
        layer_kept={p: np.stack([t.max(axis=0) for t in tables]) for p, tables in kept.items()},
        layer_kv=kv.max(axis=0),
        lay=lay,
        measure=measure,
    )


def _unit(rank: object, layer: LayerSpec, of_group: bool) -> RankShare:
    """One token of the rank's own, or one of its group: every item is linear in both."""
    heads = num_kv_heads(rank, layer.attention)  # type: ignore[arg-type]
    own = rank.num_q_heads  # type: ignore[attr-defined]
    return RankShare(int(not of_group), int(of_group), own, heads)


def _layer_out(
    book: PriceBook, stage: Stage, stage_idx: int, num_stages: int, kinds: Sequence[LayerSpec]
) -> tuple[
    Callable[[ChunkLoads], ChunkBytes],
    Callable[[IntArray, IntArray, IntArray, IntArray], ChunkBytes],
]:
    """`StageBytes.lay` and `StageBytes.measure`, their coefficients worked out once."""
    model, cost, e = book.instance.model, book.instance.cost, book.e
    hidden, e_acc, ranks = model.hidden_size, cost.accumulator_bytes, stage.ranks
    firsts = np.cumsum([0, *(len(group.ranks) for group in stage.ring)])[:-1]
    sizes = [len(group.ranks) for group in stage.ring]
    is_grouped = np.repeat(np.array(sizes) > 1, sizes)

    def pair(count: Callable[[RankShare, LayerSpec], float], layer: LayerSpec) -> IntArray:
        """``[own or group, rank]`` bytes per token."""
        return np.array(
            [[int(count(_unit(rank, layer, own), layer)) for rank in ranks]
             for own in (False, True)], dtype=np.int64,
        )  # fmt: skip

    def again(policy: Policy, share: RankShare, layer: LayerSpec) -> int:
        whole = kept_bytes("none", share, layer, hidden, e)
        return whole - kept_bytes(policy, share, layer, hidden, e)

    repeated = {
        p: [pair(lambda s, layer, p=p: again(p, s, layer), k) for k in kinds]  # type: ignore[misc]
        for p in LADDER
    }
    mlp = [pair(lambda s, layer: mlp_gradient_bytes(s, layer, hidden, e), k) for k in kinds]
    attention = [
        pair(lambda s, layer: attention_gradient_bytes(s, layer, hidden, e, e_acc), k)
        for k in kinds
    ]
    exchange = [pair(lambda s, layer: exchange_buffer_bytes(s, layer, e), k) for k in kinds]
    around = np.array(
        [max(ring_buffer_bytes(1, _unit(rank, k, False), k, e, e_acc) for k in kinds)
         for rank in ranks]
    )  # fmt: skip
    edge = boundary_buffer_bytes(RankShare(1, 0, 0, 0), hidden, e) if num_stages > 1 else 0
    fixed = gathered_bytes(book, stage, stage_idx, num_stages)
    tile, is_last = cost.logits_tile_tokens, stage_idx == num_stages - 1
    per_logit = logits_bytes(1, model.vocab_size, e, tile) if is_last else 0
    weights = [rank.tokens for rank in ranks]

    def lay(loads: ChunkLoads) -> ChunkBytes:
        own = split_all(loads.tokens, weights)
        group = np.repeat(np.add.reduceat(own, firsts, axis=1), sizes, axis=1)
        return measure(own, group, group * loads.is_followed[:, None], loads.context)

    def measure(
        own: IntArray, group: IntArray, read_later: IntArray, context: IntArray
    ) -> ChunkBytes:
        def at(pair: IntArray) -> IntArray:
            return np.asarray(pair[0] * own + pair[1] * group, dtype=np.int64)

        gradient = [np.maximum(at(m), at(a)) for m, a in zip(mlp, attention, strict=True)]
        transient = {
            p: _largest([at(r) + g for r, g in zip(rows, gradient, strict=True)])
            for p, rows in repeated.items()
        }
        working = is_grouped * _largest([at(x) for x in exchange]) + edge * own + fixed
        if len(sizes) > 1:
            # A block is 1/64 of the context, and four of them are on the way.
            blocks = -(-context // RING_BLOCKS)
            working = working + blocks[:, None] * around
        working = working + per_logit * np.minimum(own, tile)
        return ChunkBytes(own, group, read_later, transient, working)

    return lay, measure


def _largest(arrays: Sequence[IntArray]) -> IntArray:
    result = arrays[0]
    for other in arrays[1:]:
        result = np.maximum(result, other)
    return result


def split_all(tokens: IntArray, weights: Sequence[int]) -> IntArray:
    """`split_tokens` of many chunks at once, ``[chunk, rank]``."""
    if int(tokens.max(initial=0)) * max(weights) >= _SAFE_PRODUCT:
        return np.array([split_tokens(int(t), weights) for t in tokens], dtype=np.int64)
    total = sum(weights)
    product = tokens[:, None] * np.array(weights, dtype=np.int64)
    counts, rest = product // total, product % total
    missing = tokens - counts.sum(axis=1)
    rank = np.empty_like(rest)
    order = np.argsort(-rest, axis=1, kind="stable")
    np.put_along_axis(rank, order, np.arange(len(weights))[None], axis=1)
    result: IntArray = counts + (rank < missing[:, None])
    return result

"""Local moves on a draft, each priced by `evaluate`: the best of a round is kept.

Moves: layers from one stage to another, another ZeRO mode, another order of stages, another
arrangement of a stage, blocks of tokens and query heads from one rank to another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hexisolve.data.instance import Instance
from hexisolve.formulation.stage_memory_bound import state_modes
from hexisolve.plan.plan import HeadGroup, Rank
from hexisolve.solvers.drafts import Draft, fit_stages, step_time_s

Rings = Callable[[tuple[str, ...]], Sequence[tuple[HeadGroup, ...]]]


def polish(
    instance: Instance, draft: Draft, value_s: float, rings: Rings, deadline: float
) -> tuple[Draft, float]:
    """Improve a draft until no move helps or the deadline has come.

    Parameters
    ----------
    draft, value_s
        Where to start, and its step time.
    rings
        Arrangements of a set of devices.
    deadline
        On `time.monotonic`.
    """
    improved = True
    while improved:
        improved = False
        for moves in (_layer_moves, _mode_moves, _swap_moves):
            for changed, trial in moves(instance, draft):
                if time.monotonic() > deadline:
                    return draft, value_s
                better = _better(instance, trial, changed, value_s)
                if better is not None:
                    draft, value_s = better
                    improved = True
                    break
            if improved:
                break
        if improved:
            continue
        for changed, trial in (*_ring_moves(draft, rings), *_share_moves(instance, draft)):
            if time.monotonic() > deadline:
                return draft, value_s
            better = _better(instance, trial, changed, value_s)
            if better is not None:
                draft, value_s = better
                improved = True
                break
    return draft, value_s


def _better(
    instance: Instance, trial: Draft, changed: Sequence[int], value_s: float
) -> tuple[Draft, float] | None:
    """The trial fitted to memory, and its price, when that is below `value_s`."""
    # Without recompute the price is lowest: a trial that loses even so needs no fitting.
    bare = tuple(replace(s, steps=0) if i in changed else s for i, s in enumerate(trial))
    if step_time_s(instance, bare) >= value_s * (1 - 1e-9):
        return None
    fitted = fit_stages(instance, trial, changed)
    if fitted is None:
        return None
    found = step_time_s(instance, fitted)
    return (fitted, found) if found < value_s * (1 - 1e-9) else None


def _layer_moves(instance: Instance, draft: Draft) -> Iterator[tuple[list[int], Draft]]:
    """A few layers from one stage to another."""
    for giver in range(len(draft)):
        for taker in range(len(draft)):
            for count in (1, 2, 3):
                if giver == taker or draft[giver].num_layers <= count:
                    continue
                trial = list(draft)
                trial[giver] = replace(draft[giver], num_layers=draft[giver].num_layers - count)
                trial[taker] = replace(draft[taker], num_layers=draft[taker].num_layers + count)
                if _heads_match(instance, trial):
                    yield [giver, taker], tuple(trial)


def _heads_match(instance: Instance, stages: Sequence[object]) -> bool:
    """Layer moves keep head ranges legal only where all layers have the same heads."""
    heads = {layer.attention.num_q_heads for layer in instance.model.layers}
    return len(heads) == 1 and bool(stages)


def _mode_moves(instance: Instance, draft: Draft) -> Iterator[tuple[list[int], Draft]]:
    for idx, stage in enumerate(draft):
        num_ranks = sum(len(group.ranks) for group in stage.ring)
        for mode in state_modes(instance, num_ranks):
            if mode != stage.mode:
                yield [idx], (*draft[:idx], replace(stage, mode=mode), *draft[idx + 1 :])


def _swap_moves(instance: Instance, draft: Draft) -> Iterator[tuple[list[int], Draft]]:
    """Two stages change places, with their layers or each keeping the number of its place."""
    for i in range(len(draft)):
        for k in range(i + 1, len(draft)):
            trial = list(draft)
            trial[i], trial[k] = draft[k], draft[i]
            everyone = list(range(len(draft)))
            yield everyone, tuple(trial)
            trial[i] = replace(draft[k], num_layers=draft[i].num_layers)
            trial[k] = replace(draft[i], num_layers=draft[k].num_layers)
            yield everyone, tuple(trial)


def _ring_moves(draft: Draft, rings: Rings) -> Iterator[tuple[list[int], Draft]]:
    for idx, stage in enumerate(draft):
        devices = tuple(sorted(rank.device for group in stage.ring for rank in group.ranks))
        for ring in rings(devices):
            if ring != stage.ring:
                yield [idx], (*draft[:idx], replace(stage, ring=ring), *draft[idx + 1 :])


def _share_moves(instance: Instance, draft: Draft) -> Iterator[tuple[list[int], Draft]]:
    """Blocks of tokens or query heads between two ranks of a stage of unlike devices."""
    block = instance.workload.block_tokens
    for idx, stage in enumerate(draft):
        ranks = [rank for group in stage.ring for rank in group.ranks]
        kinds = {instance.cluster.device(rank.device).type for rank in ranks}
        if len(ranks) < 2 or (len(kinds) == 1 and len(ranks) > 8):
            continue
        for size in (4, 1):
            for giver in range(len(ranks)):
                for taker in range(len(ranks)):
                    moved = _with_tokens(stage.ring, giver, taker, size * block)
                    if moved is not None:
                        yield [idx], (*draft[:idx], replace(stage, ring=moved), *draft[idx + 1 :])
        for ring in _head_moves(stage.ring):
            yield [idx], (*draft[:idx], replace(stage, ring=ring), *draft[idx + 1 :])


def _with_tokens(
    ring: tuple[HeadGroup, ...], giver: int, taker: int, tokens: int
) -> tuple[HeadGroup, ...] | None:
    position, groups = 0, []
    for group in ring:
        ranks = []
        for rank in group.ranks:
            change = tokens * ((position == taker) - (position == giver))
            if rank.tokens + change < 0 or giver == taker:
                return None
            ranks.append(replace(rank, tokens=rank.tokens + change))
            position += 1
        groups.append(HeadGroup(tuple(ranks)))
    return tuple(groups)


def _head_moves(ring: tuple[HeadGroup, ...]) -> Iterator[tuple[HeadGroup, ...]]:
    """One head from a rank to another of its group."""
    for idx, group in enumerate(ring):
        counts = [rank.num_q_heads for rank in group.ranks]
        for giver in range(len(counts)):
            for taker in range(len(counts)):
                if giver == taker or not counts[giver]:
                    continue
                moved = list(counts)
                moved[giver] -= 1
                moved[taker] += 1
                yield (*ring[:idx], with_heads(group, moved), *ring[idx + 1 :])


def with_heads(group: HeadGroup, counts: Sequence[int]) -> HeadGroup:
    """The group with these numbers of query heads, in rank order."""
    first, ranks = 0, []
    for rank, count in zip(group.ranks, counts, strict=True):
        ranks.append(Rank(rank.device, rank.tokens, (first, first + count), rank.state_share))
        first += count
    return HeadGroup(tuple(ranks))

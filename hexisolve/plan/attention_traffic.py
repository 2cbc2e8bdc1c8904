"""Who sends how many bytes to whom in the attention of one layer and chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hexisolve.cost.exchange import (
    heads_to_tokens_bytes,
    kv_head_range,
    kv_width,
    ring_kv_backward_bytes,
    ring_kv_forward_bytes,
    ring_q_backward_bytes,
    ring_q_forward_bytes,
    tokens_to_heads_bytes,
    visiting_tokens,
)
from hexisolve.data.model_spec import AttentionSpec
from hexisolve.plan.plan import HeadGroup, Rank, Stage
from hexisolve.plan.tokens import StageTokens

Pairs = dict[tuple[str, str], float]


class AllToAll(NamedTuple):
    """Flows of the two exchanges of a stage, all groups at once.

    Backward sends the transposed flows.
    """

    tokens_to_heads: Pairs
    heads_to_tokens: Pairs


class Ring(NamedTuple):
    """Flows of one ring pass, and the hops it takes."""

    forward: Pairs
    backward: Pairs
    num_hops: int


def transposed(pairs: Pairs) -> Pairs:
    """The same bytes, the other way."""
    return {(target, source): num_bytes for (source, target), num_bytes in pairs.items()}


def all_to_all(stage: Stage, tokens: StageTokens, attention: AttentionSpec, e: int) -> AllToAll:
    """Equation 4: the exchanges before and after attention."""
    before: Pairs = {}
    after: Pairs = {}
    for group, counts in zip(stage.ring, tokens.rank_tokens, strict=True):
        if len(group.ranks) < 2:
            continue
        heads = [(rank.num_q_heads, num_kv_heads(rank, attention)) for rank in group.ranks]
        for s_r, sender in zip(counts, group.ranks, strict=True):
            if not s_r:
                continue
            for (h_q, k_q), receiver in zip(heads, group.ranks, strict=True):
                if receiver is not sender and h_q:
                    pair = (sender.device, receiver.device)
                    before[pair] = tokens_to_heads_bytes(s_r, h_q, k_q, attention, e)
                    after[pair[::-1]] = heads_to_tokens_bytes(s_r, h_q, attention, e)
    return AllToAll(before, after)


def num_kv_heads(rank: Rank, attention: AttentionSpec) -> int:
    """k_r: KV heads that the rank's query heads read."""
    first, stop = kv_head_range(rank.q_heads, attention.num_q_heads, attention.num_kv_heads)
    return stop - first


def ring(stage: Stage, tokens: StageTokens, attention: AttentionSpec, e: int, e_acc: int) -> Ring:
    """Equation 5: one pass of the ring, forward and backward.

    A slice visits only the groups that hold queries of it; each receives from the one before it
    in ring order. A head that several ranks of a group hold is fetched from the first of them.
    """
    if len(stage.ring) < 2:
        return Ring({}, {}, 0)
    visits: dict[tuple[int, int], list[float]] = {}
    num_hops = 0
    for part, owned in zip(tokens.slices, tokens.owned, strict=True):
        groups = [idx for idx, count in enumerate(owned) if count]
        if len(groups) < 2:
            continue
        num_hops = max(num_hops, len(groups) - 1)
        away = [visiting_tokens(part.num_tokens, part.start, owned[idx]) for idx in groups]
        if stage.ring_kind == "q":
            away = [float(part.num_tokens - owned[idx]) for idx in groups]
        for position, idx in enumerate(groups):
            sums = visits.setdefault((groups[position - 1], idx), [0.0, 0.0])
            sums[0] += away[position]
            sums[1] += away[position - 1]
    forward: Pairs = {}
    backward: Pairs = {}
    for (before_idx, idx), (visiting, visiting_before) in visits.items():
        senders, receivers = stage.ring[before_idx], stage.ring[idx]
        if stage.ring_kind == "kv":
            hops = _kv_hops(senders, receivers, attention)
        else:
            hops = _q_hops(senders, receivers)
        for source, target, share, total in hops:
            if stage.ring_kind == "kv":
                width = kv_width(total, attention)
                there = ring_kv_forward_bytes(visiting, width, e)
                back = ring_kv_backward_bytes(visiting, visiting_before, width, e, e_acc)
            else:
                there = ring_q_forward_bytes(visiting, visiting_before, total, attention, e, e_acc)
                back = ring_q_backward_bytes(visiting, visiting_before, total, attention, e, e_acc)
            forward[source, target] = forward.get((source, target), 0.0) + there * share / total
            backward[source, target] = backward.get((source, target), 0.0) + back * share / total
    return Ring(forward, backward, num_hops)


def _q_hops(senders: HeadGroup, receivers: HeadGroup) -> Iterator[tuple[str, str, int, int]]:
    """(sender, receiver, heads fetched, all heads of the receiver) when queries travel."""
    owners = [(rank.q_heads, rank.device) for rank in senders.ranks]
    for rank in receivers.ranks:
        for (first, stop), device in owners:
            shared = min(stop, rank.q_heads[1]) - max(first, rank.q_heads[0])
            if shared > 0:
                yield device, rank.device, shared, rank.num_q_heads


def _kv_hops(
    senders: HeadGroup, receivers: HeadGroup, attention: AttentionSpec
) -> Iterator[tuple[str, str, int, int]]:
    """(sender, receiver, heads fetched, all heads of the receiver) when K and V travel."""
    num_q, num_kv = attention.num_q_heads, attention.num_kv_heads
    owners: list[tuple[int, int, str]] = []
    covered = 0
    for rank in sorted(senders.ranks, key=lambda rank: rank.q_heads):
        first, stop = kv_head_range(rank.q_heads, num_q, num_kv)
        if max(first, covered) < stop:
            owners.append((max(first, covered), stop, rank.device))
            covered = stop
    for rank in receivers.ranks:
        low, high = kv_head_range(rank.q_heads, num_q, num_kv)
        for first, stop, device in owners:
            shared = min(stop, high) - max(first, low)
            if shared > 0:
                yield device, rank.device, shared, high - low

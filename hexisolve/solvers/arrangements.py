"""Candidate insides of a stage: head groups, ring order, token shares, query heads.

The grouping is enumerated from a short list; shares follow from the speeds by water-filling, with
heads in whole numbers and tokens in blocks. Nothing here is a bound: the price decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hexisolve.data.cluster import Device
from hexisolve.data.instance import Instance
from hexisolve.formulation.work import REPEATS, LayerLoad
from hexisolve.plan.pieces import split_tokens
from hexisolve.plan.plan import HeadGroup, Policy, Rank

Grouping = tuple[tuple[int, ...], ...]  # positions of devices, group by group in ring order


@dataclass(frozen=True)
class ShareLimits:
    """Most blocks each device can hold; None where there is no limit."""

    blocks: tuple[int | None, ...]


def groupings(devices: Sequence[Device]) -> Iterator[Grouping]:
    """Ways to group the devices of a stage, the plainest first."""
    hosts: dict[str, list[int]] = {}
    for idx, device in enumerate(devices):
        hosts.setdefault(device.host, []).append(idx)
    parts = list(hosts.values())
    seen: set[Grouping] = set()
    for grouping in _all_groupings(parts, len(devices)):
        if grouping not in seen:
            seen.add(grouping)
            yield grouping


def _all_groupings(parts: Sequence[Sequence[int]], num_devices: int) -> Iterator[Grouping]:
    largest = max(map(len, parts))
    size = 1
    while size <= largest:
        yield tuple(group for part in parts for group in _cut(part, size))
        size *= 2
    yield tuple(map(tuple, parts))
    if len(parts) == 1:
        # Across two switches of one box: the i-th of each half together.
        half = largest // 2
        if half and largest % 2 == 0:
            part = parts[0]
            yield tuple((part[idx], part[idx + half]) for idx in range(half))
            if half % 2 == 0:
                yield tuple(
                    (part[i], part[i + 1], part[i + half], part[i + 1 + half])
                    for i in range(0, half, 2)
                )
        return
    yield (tuple(range(num_devices)),)
    # The i-th devices of all hosts together, and groups of those.
    width = min(map(len, parts))
    count = width
    while count >= 2:
        yield tuple(
            tuple(idx for part in parts for idx in _share_of(part, place, count))
            for place in range(count)
        )
        count //= 2
    if len(parts) > 2:
        joined: tuple[int, ...] = tuple(idx for part in parts[:2] for idx in part)
        yield (joined, *map(tuple, parts[2:]))


def _cut(part: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return [tuple(part[first : first + size]) for first in range(0, len(part), size)]


def _share_of(part: Sequence[int], place: int, count: int) -> Sequence[int]:
    return part[len(part) * place // count : len(part) * (place + 1) // count]


def fill_ring(
    instance: Instance,
    devices: Sequence[Device],
    grouping: Grouping,
    load: LayerLoad,
    policy: Policy,
    num_blocks: int,
    last_block_tokens: int,
    limits: Sequence[float] | None = None,
) -> tuple[HeadGroup, ...] | None:
    """Give every rank tokens and heads in proportion to what makes all finish together.

    Parameters
    ----------
    load
        Work of a layer that stands for the stage.
    num_blocks, last_block_tokens
        Blocks of a full sequence; the last may be shorter.
    limits
        Largest share of the tokens for each device (memory); None for no limit.

    Returns
    -------
    The ring, or None when the limits leave tokens over.
    """
    repeats = REPEATS[policy]
    dense = (3 + repeats[0]) * load.dense_s
    attention = load.forward_s() + load.backward_s(policy) - dense
    layer = instance.model.layers[0].attention
    heads = [_whole_heads(attention[list(group)], layer.num_q_heads, layer.num_kv_heads)
             for group in grouping]  # fmt: skip
    caps = np.full(len(devices), np.inf) if limits is None else np.asarray(limits, dtype=float)
    group_cost, inside = [], []
    for group, counts in zip(grouping, heads, strict=True):
        members = list(group)
        shares = (1 / dense[members]) / (1 / dense[members]).sum()
        slowest = max(
            a * h / layer.num_q_heads for a, h in zip(attention[members], counts, strict=True)
        )
        group_cost.append(float((dense[members] * shares).max()) + slowest)
        inside.append(shares)
    sigma = 1 / np.array(group_cost)
    sigma /= sigma.sum()
    shares = np.zeros(len(devices))
    for group, own, whole in zip(grouping, inside, sigma, strict=True):
        shares[list(group)] = own * whole
    capped = _respect(shares, caps)
    if capped is None:
        return None
    blocks = _whole_blocks(capped, num_blocks, caps)
    if blocks is None:
        return None
    tokens = _tokens(blocks, instance.workload.block_tokens, last_block_tokens)
    ring = []
    for group, counts in zip(grouping, heads, strict=True):
        first, ranks = 0, []
        for idx, count in zip(group, counts, strict=True):
            ranks.append(Rank(devices[idx].id, tokens[idx], (first, first + count)))
            first += count
        ring.append(HeadGroup(tuple(ranks)))
    return tuple(ring)


def _whole_heads(seconds: np.ndarray, num_q_heads: int, num_kv_heads: int) -> list[int]:
    """Heads by speed; in whole KV groups where that evens out as well."""
    speeds = 1 / seconds
    weights = [max(round(1e6 * float(v / speeds.max())), 1) for v in speeds]
    by_head = split_tokens(num_q_heads, weights)
    per_kv = num_q_heads // num_kv_heads
    by_group = [per_kv * count for count in split_tokens(num_kv_heads, weights)]

    def slowest(counts: Sequence[int]) -> float:
        return max(float(s) * count for s, count in zip(seconds, counts, strict=True))

    return list(by_group if slowest(by_group) <= slowest(by_head) * 1.0001 else by_head)


def _respect(shares: np.ndarray, caps: np.ndarray) -> np.ndarray | None:
    """Cut shares at their caps and give the rest to the others in proportion."""
    if caps.sum() < 1:
        return None
    result = shares.copy()
    for _ in range(len(shares)):
        over = result > caps + 1e-12
        if not over.any():
            break
        fixed = result >= caps - 1e-12
        result = np.minimum(result, caps)
        free = ~fixed
        missing = 1 - result.sum()
        weight = result[free].sum()
        if weight <= 0:
            break
        result[free] *= 1 + missing / weight
    return result


def _whole_blocks(shares: np.ndarray, num_blocks: int, caps: np.ndarray) -> list[int] | None:
    weights = [max(round(1e9 * float(share)), 0) for share in shares]
    if not any(weights):
        return None
    blocks = list(split_tokens(num_blocks, weights))
    most = [int(np.floor(cap * num_blocks + 1e-9)) if np.isfinite(cap) else num_blocks
            for cap in caps]  # fmt: skip
    for idx, limit in enumerate(most):
        while blocks[idx] > limit:
            other = max(range(len(blocks)), key=lambda k: most[k] - blocks[k])
            if blocks[other] >= most[other]:
                return None
            blocks[idx] -= 1
            blocks[other] += 1
    return blocks


def _tokens(blocks: Sequence[int], block_tokens: int, last_block_tokens: int) -> list[int]:
    """Tokens of whole blocks; the short last block goes to the last device that has any."""
    tokens = [count * block_tokens for count in blocks]
    for idx in range(len(tokens) - 1, -1, -1):
        if tokens[idx]:
            tokens[idx] -= block_tokens - last_block_tokens
            break
    return tokens

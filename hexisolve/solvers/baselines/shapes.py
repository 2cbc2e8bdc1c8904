"""Stages cut from a list of devices: head groups, token shares, head ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from hexisolve.data.cluster import Cluster, Device
from hexisolve.data.instance import Instance
from hexisolve.plan.pieces import split_tokens
from hexisolve.plan.plan import HeadGroup, Layout, Rank, Replica, Stage

Grid = tuple[tuple[Device, ...], ...]


@dataclass(frozen=True)
class Degrees:
    """How many replicas, stages, head groups in a ring, and ranks in a head group."""

    replicas: int
    stages: int
    ring: int
    heads: int

    def __str__(self) -> str:
        return f"DP {self.replicas} x PP {self.stages} x CP {self.ring} x HP {self.heads}"


def divisors(number: int) -> tuple[int, ...]:
    """Divisors of `number` in rising order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    return tuple(part for part in range(1, number + 1) if number % part == 0)


def even_counts(total: int, num_parts: int) -> tuple[int, ...]:
    """`total` in floor / ceil parts, the larger ones first.

    >>> even_counts(40, 16)[:9]
    (3, 3, 3, 3, 3, 3, 3, 3, 2)
    """
    low, extra = divmod(total, num_parts)
    return tuple(low + (part < extra) for part in range(num_parts))


def ranges(counts: Sequence[int], start: int = 0) -> tuple[tuple[int, int], ...]:
    """Half-open ranges of the given lengths, one after another.

    >>> ranges([2, 0, 3])
    ((0, 2), (2, 2), (2, 5))
    """
    stops = tuple(accumulate(counts, initial=start))
    return tuple(pairwise(stops))


def grid(devices: Sequence[Device], num_groups: int, *, heads_inside: bool = True) -> Grid:
    """`devices` as head groups of equal size.

    Parameters
    ----------
    devices
        In order, so that neighbours in the list are near each other.
    num_groups
        Head groups; must divide the number of devices.
    heads_inside
        Head groups of neighbours with the ring across them (as USP places them), or the reverse.
    """
    size = len(devices) // num_groups
    if heads_inside:
        return tuple(tuple(devices[g * size : (g + 1) * size]) for g in range(num_groups))
    return tuple(tuple(devices[g::num_groups]) for g in range(num_groups))


def weighted_stage(
    instance: Instance,
    layers: tuple[int, int],
    groups: Grid,
    token_weights: Mapping[str, int] | None = None,
    head_weights: Mapping[str, int] | None = None,
    group_weights: Sequence[int] | None = None,
) -> Stage:
    """A stage whose tokens and heads follow weights; without weights they are even.

    Parameters
    ----------
    layers
        Half-open layer range.
    groups
        Devices of every head group, in ring order.
    token_weights, head_weights
        Weight of each device for its share of its group's tokens and query heads.
    group_weights
        Weight of each group's token share; None for the sum over its devices.
    """
    num_heads = instance.model.layers[layers[0]].attention.num_q_heads
    weights = [[1 if token_weights is None else token_weights[d.id] for d in g] for g in groups]
    if group_weights is None:
        flat = iter(token_counts(instance, [w for row in weights for w in row]))
        tokens = [[next(flat) for _ in row] for row in weights]
    else:
        totals = token_counts(instance, group_weights)
        tokens = [list(split_tokens(t, row)) for t, row in zip(totals, weights, strict=True)]
    ring = []
    for group, own in zip(groups, tokens, strict=True):
        if head_weights is None:
            heads = ranges(even_counts(num_heads, len(group)))
        else:
            heads = ranges(split_tokens(num_heads, [head_weights[d.id] for d in group]))
        ring.append(
            HeadGroup(tuple(Rank(d.id, t, h) for d, t, h in zip(group, own, heads, strict=True)))
        )
    return Stage(layers, tuple(ring))


def token_counts(instance: Instance, weights: Sequence[int]) -> tuple[int, ...]:
    """Tokens of the longest sequence in proportion to `weights`, in blocks where that fits.

    Even weights are split to the token: blocks would make an even split uneven.
    """
    num_tokens = max(instance.workload.sequence_lengths)
    block = instance.workload.block_tokens
    if len(set(weights)) == 1 or num_tokens < block * 8 * len(weights):
        return split_tokens(num_tokens, weights)
    counts = [block * part for part in split_tokens(num_tokens // block, weights)]
    counts[max(range(len(counts)), key=lambda idx: (counts[idx], -idx))] += num_tokens % block
    return tuple(counts)


def one_replica(stages: Sequence[Stage]) -> Layout:
    """A layout of a single pipeline."""
    return Layout((Replica(tuple(stages)),))


def has_uniform_heads(instance: Instance, layers: tuple[int, int]) -> bool:
    """Whether one head range per rank can serve all these layers."""
    specs = instance.model.layers[layers[0] : layers[1]]
    return len({spec.attention.num_q_heads for spec in specs}) == 1


def connected_parts(cluster: Cluster) -> tuple[tuple[Device, ...], ...]:
    """Devices that can talk to each other, part by part, in the order of the cluster."""
    parts: list[list[Device]] = []
    for device in cluster.devices:
        for part in parts:
            if cluster.connected(part[0].id, device.id):
                part.append(device)
                break
        else:
            parts.append([device])
    return tuple(map(tuple, parts))


def kinds_by_speed(devices: Sequence[Device]) -> tuple[tuple[Device, ...], ...]:
    """Devices of each kind, the fastest kind first (dense FLOP/s)."""
    kinds: dict[str, list[Device]] = {}
    for device in devices:
        kinds.setdefault(device.type, []).append(device)
    return tuple(
        tuple(kind) for kind in sorted(kinds.values(), key=lambda kind: -kind[0].dense_flop_per_s)
    )


def degrees(num_devices: int, max_replicas: int, max_stages: int) -> Iterator[Degrees]:
    """Every way to write `num_devices` as DP x PP x CP x HP."""
    for replicas in divisors(num_devices):
        if replicas > max_replicas:
            break
        per_replica = num_devices // replicas
        for stages in divisors(per_replica):
            if stages > max_stages:
                break
            for ring in divisors(per_replica // stages):
                yield Degrees(replicas, stages, ring, per_replica // stages // ring)

"""HexiSeq's scheduler: asymmetric context and head parallelism in three stages.

1. Bandwidth clustering: devices joined by links at least as fast as a threshold form clusters; a
   cluster, or an even part of it, is a head group.
2. Token shares of the groups in proportion to their compute, and to its square root (attention
   work grows with the square of the tokens); inside a group tokens and heads follow compute.
3. Coordinate descent over the shares and heads of every kind of device; a step that does not fit
   in memory is refused.

Source: HexiSeq (arXiv 2605.07569), its published outline; thresholds and step sizes are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hexisolve.data.cluster import Cluster, Device
from hexisolve.data.instance import Instance
from hexisolve.plan.plan import Layout, Stage
from hexisolve.plan.schedule import one_f_one_b
from hexisolve.solvers.baselines.families import speed_layers, speed_weights
from hexisolve.solvers.baselines.search import (
    Recompute,
    StageChoice,
    choose,
    chunk_without_number,
    layout_bound_s,
    sequence_chunks,
    stage_seconds,
)
from hexisolve.solvers.baselines.shapes import Grid, divisors, one_replica, weighted_stage

NUM_DESCENTS = 3
MAX_PRICES = 80
OVERFLOW_S = 1e12
HOPELESS_EXCESS = 1.5
STEPS = (0.3, 0.1, 0.03, 0.01)


@dataclass(frozen=True)
class Draft:
    """One stage of a HexiSeq layout with the knobs that the descent turns.

    Parameters
    ----------
    groups
        Devices of every head group, in ring order.
    token_scale, head_scale
        Factor on the compute weight of each kind of device, for tokens and for heads.
    is_sqrt
        Whether group shares follow the square root of their compute.
    """

    layers: tuple[int, int]
    groups: Grid
    token_scale: Mapping[str, float]
    head_scale: Mapping[str, float]
    is_sqrt: bool

    def stage(self, instance: Instance) -> Stage:
        """The stage these knobs give."""
        devices = [device for group in self.groups for device in group]
        compute = speed_weights(devices)
        tokens = {d.id: round(compute[d.id] * self.token_scale[d.type]) for d in devices}
        heads = {d.id: round(compute[d.id] * self.head_scale[d.type]) for d in devices}
        shares = [sum(tokens[d.id] for d in group) for group in self.groups]
        if self.is_sqrt:
            shares = [round(1000 * math.sqrt(share)) for share in shares]
        return weighted_stage(instance, self.layers, self.groups, tokens, heads, shares)


def drafts(instance: Instance, devices: Sequence[Device]) -> Iterator[tuple[Draft, ...]]:
    """Stages 1 and 2: all groupings and shares, one tuple of stages per pipeline."""
    for num_stages in divisors(len(devices)):
        if num_stages > instance.model.num_layers:
            break
        size = len(devices) // num_stages
        runs = [devices[p * size : (p + 1) * size] for p in range(num_stages)]
        layer_ranges = speed_layers(instance, runs)
        if layer_ranges is None:
            continue
        run_groupings = [groupings(instance.cluster, run) for run in runs]
        for choice in range(max(map(len, run_groupings))):
            for is_sqrt in (False, True):
                yield tuple(
                    Draft(
                        layers, found[min(choice, len(found) - 1)],
                        {d.type: 1.0 for d in run}, {d.type: 1.0 for d in run}, is_sqrt,
                    )
                    for layers, run, found in zip(layer_ranges, runs, run_groupings, strict=True)
                )  # fmt: skip


def groupings(cluster: Cluster, devices: Sequence[Device]) -> tuple[Grid, ...]:
    """Stage 1: ways to form head groups, the coarsest first."""
    found: dict[Grid, None] = {}
    for clusters in bandwidth_clusters(cluster, devices):
        smallest = math.gcd(*map(len, clusters))
        for parts in divisors(smallest):
            groups = tuple(
                tuple(members[k * len(members) // parts : (k + 1) * len(members) // parts])
                for members in clusters
                for k in range(parts)
            )
            found.setdefault(groups)
    return tuple(found)


def bandwidth_clusters(cluster: Cluster, devices: Sequence[Device]) -> tuple[Grid, ...]:
    """Connected components of the links at least as fast as each level, slowest level first."""
    pairs = sorted(
        (
            (min(_bytes_per_s(cluster, a, b), _bytes_per_s(cluster, b, a)), i, j)
            for i, a in enumerate(devices)
            for j, b in enumerate(devices[:i])
        ),
        reverse=True,
    )
    parent = list(range(len(devices)))

    def root(idx: int) -> int:
        while parent[idx] != idx:
            idx = parent[idx]
        return idx

    levels: list[Grid] = [tuple((device,) for device in devices)]
    for position, (width, i, j) in enumerate(pairs):
        first, second = sorted((root(i), root(j)))
        parent[second] = first
        is_last_of_level = position + 1 == len(pairs) or pairs[position + 1][0] != width
        if is_last_of_level:
            members: dict[int, list[Device]] = {}
            for idx, device in enumerate(devices):
                members.setdefault(root(idx), []).append(device)
            levels.append(tuple(map(tuple, members.values())))
    return tuple(reversed(tuple(dict.fromkeys(levels))))


def _bytes_per_s(cluster: Cluster, source: Device, target: Device) -> float:
    edges = cluster.route(source.id, target.id).edges
    return min(cluster.edge_bytes_per_s(edge) for edge in edges)


def descend(draft: Draft, price: Callable[[Draft, float], float]) -> Draft:
    """Stage 3: turn one knob at a time while the price falls.

    `price` takes a draft and the best price so far; it may answer with any number above the best
    for a draft that is no better.
    """
    best_s = price(draft, math.inf)
    if best_s >= OVERFLOW_S * HOPELESS_EXCESS:
        return draft
    num_prices = 0
    for step in STEPS:
        is_moving = True
        while is_moving and num_prices < MAX_PRICES:
            is_moving = False
            for neighbour in _neighbours(draft, step):
                num_prices += 1
                price_s = price(neighbour, best_s)
                if price_s < best_s * (1 - 1e-9):
                    draft, best_s, is_moving = neighbour, price_s, True
    return draft


def _neighbours(draft: Draft, step: float) -> Iterator[Draft]:
    kinds = list(draft.token_scale)
    has_mixed_group = any(len({d.type for d in group}) > 1 for group in draft.groups)
    for kind in kinds if len(kinds) > 1 else ():
        for factor in (1 + step, 1 / (1 + step)):
            tokens, heads = dict(draft.token_scale), dict(draft.head_scale)
            tokens[kind] *= factor
            heads[kind] *= factor
            yield replace(draft, token_scale=tokens)
            if has_mixed_group:
                yield replace(draft, head_scale=heads)


def hexiseq_layouts(instance: Instance, devices: Sequence[Device]) -> Iterator[Layout]:
    """All drafts of stages 1 and 2, and the most promising ones after stage 3."""
    scored = []
    for idx, draft in enumerate(drafts(instance, devices)):
        layout = one_replica([part.stage(instance) for part in draft])
        yield layout
        scored.append((layout_bound_s(instance, layout), idx, draft))
    for _, _, draft in sorted(scored, key=lambda entry: entry[:2])[:NUM_DESCENTS]:
        parts = list(draft)
        for stage_idx in range(len(parts)):
            parts[stage_idx] = descend(parts[stage_idx], _pricer(instance, parts, stage_idx))
        yield one_replica([part.stage(instance) for part in parts])


def _pricer(
    instance: Instance, parts: Sequence[Draft], stage_idx: int
) -> Callable[[Draft, float], float]:
    """Seconds of a stage over all chunks; beyond every time, by the excess, when it overflows."""
    stages = [part.stage(instance) for part in parts]
    chunks = sequence_chunks(instance, range(len(instance.workload.sequence_lengths)))
    schedule = one_f_one_b(len(stages), len(chunks))

    shapes = [chunk_without_number(chunk) for chunk in chunks]

    def price(draft: Draft, best_s: float) -> float:
        stage = stages[stage_idx] = draft.stage(instance)
        none: Recompute = {"none": stage.num_layers}
        least_s = stage_seconds(instance, stage, stage_idx, len(stages), shapes, none)
        if least_s >= best_s:
            return least_s
        layout = one_replica(stages)
        choice = choose(instance, layout, 0, stage_idx, chunks, schedule, mixed=False)
        return choice.stage_s if isinstance(choice, StageChoice) else OVERFLOW_S * choice.excess

    return price

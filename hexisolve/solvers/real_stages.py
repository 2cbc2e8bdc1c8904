"""Arrangements of a column that are worth pricing as real stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from hexisolve.formulation.arrangement import Arrangement, arrange, even_rings
from hexisolve.formulation.relaxed_layer import ColumnShape
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.plan.plan import HeadGroup
from hexisolve.solvers.realise import leaning_rings, real_rings

_NUM_FAST = 2  # fastest rings of a column that are priced
_NUM_LEANING = 4  # and of those that lean to memory
_SHIFTS = (4, 2, 1)  # blocks per device that move between two hosts
_GAIN = 1e-4
Ring = tuple[HeadGroup, ...]


def real_stages(
    pricer: StagePricer, shape: ColumnShape, deadline: float = float("inf")
) -> list[Arrangement]:
    """Arrangements of a column: the fastest, then some that trade speed for room in memory.

    Where gathers beside a layer slow the fastest one down, shares that suit them better are added;
    after the `deadline`, on `time.monotonic`, not.
    """
    devices = [device.id for device in shape.devices]
    if pricer.has_bundles and shape.is_uniform:
        return [arrange(pricer, ring) for ring in even_rings(pricer.instance, devices)]
    fast = [arrange(pricer, ring) for ring in real_rings(pricer.instance, devices)[:_NUM_FAST]]
    leaning = leaning_rings(pricer.instance, devices)
    leaning = leaning[:: -(-len(leaning) // _NUM_LEANING) or 1]
    found = [*fast, *(arrange(pricer, ring) for ring in leaning)]
    if not pricer.has_bundles or not fast:
        return found
    for beside in (1, 2):
        slowed = min(fast, key=lambda own: _seconds(own, beside))
        if _seconds(slowed, beside) > min(_seconds(own, 0) for own in fast) * (1 + _GAIN):
            found.append(_suited(pricer, slowed, beside, deadline))
    return found


def _seconds(arrangement: Arrangement, beside: int) -> float:
    """F + B of a layer of the longest chunk without recompute."""
    return float(arrangement.layer_s[beside][0, :, 0].max())


def _suited(pricer: StagePricer, start: Arrangement, beside: int, deadline: float) -> Arrangement:
    """Tokens moved between hosts as long as a layer with gathers beside it gets faster."""
    best = start
    improved = True
    while improved:
        improved = False
        for ring in _shifted(pricer, best.ring):
            if time.monotonic() > deadline:
                return best
            trial = arrange(pricer, ring)
            if _seconds(trial, beside) < _seconds(best, beside) * (1 - _GAIN):
                best, improved = trial, True
                break
    return best


def _shifted(pricer: StagePricer, ring: Ring) -> Iterator[Ring]:
    """The ring with some blocks of every device of a host moved to those of another."""
    cluster = pricer.instance.cluster
    block = pricer.instance.workload.block_tokens
    hosts: dict[str, list[str]] = {}
    for group in ring:
        for rank in group.ranks:
            hosts.setdefault(cluster.device(rank.device).host, []).append(rank.device)
    for count in _SHIFTS:
        for giver, takers in ((a, b) for a in hosts.values() for b in hosts.values() if a != b):
            if len(giver) != len(takers):
                continue
            change = dict.fromkeys(giver, -count * block) | dict.fromkeys(takers, count * block)
            moved = tuple(
                HeadGroup(
                    tuple(
                        replace(rank, tokens=rank.tokens + change.get(rank.device, 0))
                        for rank in group.ranks
                    )
                )
                for group in ring
            )
            if all(rank.tokens > 0 for group in moved for rank in group.ranks):
                yield moved

"""Seconds of all layers of a stage when shares suit both speed and memory (docs/formulation.md).

Pooled memory lets a slow host with much memory keep what it has no time to compute. Here the same
shares bear both: for each number of ``layer`` and ``full`` layers a bound with rows of memory per
host, the cheapest numbers first, until none is left below what a real stage takes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hexisolve.data.instance import Instance
from hexisolve.formulation.bundled_column import bundled_work, launches_s
from hexisolve.formulation.bundled_work import Bundle, Ends, HostMemory
from hexisolve.formulation.bundles import BundledLayer, Suggestion
from hexisolve.formulation.host_memory import StagePlace, host_memory
from hexisolve.formulation.pipeline_table import FloatArray
from hexisolve.formulation.relaxed_layer import ColumnShape
from hexisolve.formulation.small_program import Optimise
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.formulation.stage_sizes import StageSizes
from hexisolve.formulation.work import POLICIES
from hexisolve.plan.plan import Policy


class JointStage(NamedTuple):
    """A stage whose layers are bounded jointly.

    Parameters
    ----------
    column, mode
        Where, and how its model states are held.
    sizes, place
        Its sizes, and which of them.
    live_tokens
        Tokens of the chunks in flight.
    layer_s, plain_s
        ``[policy]`` least seconds of a layer with gathers beside it, and with nothing.
    num_ends
        Layers that may have nothing beside them.
    layers
        Bounds of a layer by policy, and by bundles.
    smallest_stage
        Devices of a neighbour at least.
    known
        Rows written before for this column and mode.
    """

    column: ColumnShape
    mode: StateMode
    sizes: StageSizes
    place: StagePlace
    live_tokens: float
    layer_s: FloatArray
    plain_s: FloatArray
    num_ends: int
    layers: Sequence[BundledLayer]
    smallest_stage: int
    known: dict[object, Any]


def joint_layers_s(
    instance: Instance, stage: JointStage, optimise: Optimise, enough_s: float, deadline: float
) -> tuple[float, list[Suggestion]]:
    """Seconds that all layers together take at least, at most `enough_s`; and shares that suit.

    After the `deadline`, on `time.monotonic`, what is left counts without rows of memory per host.
    """
    suggestions: list[Suggestion] = []
    bound_s = enough_s
    for separate_s, counts in _cheapest_counts(instance, stage, enough_s):
        if separate_s >= bound_s:
            break
        if time.monotonic() > deadline:
            return min(bound_s, separate_s), suggestions
        own_s, found = _with_counts(instance, stage, counts, optimise, bound_s, deadline)
        bound_s = min(bound_s, max(own_s, separate_s))
        suggestions += found
    return bound_s, sorted(suggestions, key=lambda own: own.seconds)


def _cheapest_counts(
    instance: Instance, stage: JointStage, enough_s: float
) -> list[tuple[float, tuple[int, int, int]]]:
    """(seconds, layers of each policy) that pooled memory allows, cheapest first."""
    num_layers = stage.place.num_layers
    dearer = np.diff(np.maximum.accumulate(stage.layer_s))
    again, full = np.indices((num_layers + 1, num_layers + 1)).reshape(2, -1)
    seconds = num_layers * stage.layer_s[0] + (again + full) * dearer[0] + full * dearer[1]
    seconds = seconds - stage.num_ends * max(float((stage.layer_s - stage.plain_s).max()), 0.0)
    order = np.argsort(seconds, kind="stable")
    found = []
    for idx in order[(again + full <= num_layers)[order]].tolist():
        if seconds[idx] >= enough_s:
            break
        counts = (num_layers - int(again[idx] + full[idx]), int(again[idx]), int(full[idx]))
        memory = _memory(instance, stage, counts)
        if sum(memory.needs) <= memory.room.sum():
            found.append((float(seconds[idx]), counts))
    return found


def _with_counts(
    instance: Instance, stage: JointStage, counts: tuple[int, int, int], optimise: Optimise,
    enough_s: float, deadline: float,
) -> tuple[float, list[Suggestion]]:  # fmt: skip
    """The bound for given numbers of layers."""
    memory = _memory(instance, stage, counts)
    if (memory.room < 0).any():
        return np.inf, []
    used = [policy for policy, count in zip(POLICIES, counts, strict=True) if count]
    bound_s, found = enough_s, list[Suggestion]()
    # Nobody knows which policy the layers at the ends have: that which makes them cheapest.
    for policy in used if stage.num_ends else used[:1]:
        own = _with_ends(instance, stage, counts, policy, memory, optimise, enough_s, deadline)
        bound_s, found = min(bound_s, own[0]), found or own[1]
    return bound_s, found


def _with_ends(
    instance: Instance, stage: JointStage, counts: tuple[int, int, int], policy: Policy,
    memory: HostMemory, optimise: Optimise, enough_s: float, deadline: float,
) -> tuple[float, list[Suggestion]]:  # fmt: skip
    """The bound where the layers at the ends have a policy, as far as there are so many."""
    weights = {own: float(count) for own, count in zip(POLICIES, counts, strict=True) if count}
    num_ends = min(stage.num_ends, int(weights[policy]))
    ends = Ends(policy, min(1.0, num_ends), float(num_ends)) if num_ends else None
    # Ends that are left over may be any others: they count as little as a layer can.
    others, launch_s = stage.num_ends - num_ends, _launches_s(instance, counts)
    dearest = max(float((stage.layer_s - stage.plain_s).max()), 0.0)
    launch_s -= others * dearest
    longest = max(instance.workload.sequence_lengths)
    work = bundled_work(
        instance, instance.model.layers[0], longest, stage.column, stage.mode, weights, memory,
        stage.known, ends=ends,
    )  # fmt: skip

    def floor_s(bundles: tuple[Bundle, ...]) -> float:
        """Every layer on its own, with these bundles."""
        own = (
            count * layer.bound_of(bundles)
            for layer, count in zip(stage.layers, counts, strict=True)
        )
        return sum(own) - num_ends * dearest

    layers = BundledLayer(work, optimise, enough_s - launch_s, floor_s)
    found = layers.suggestions()
    layers.run(enough_s - launch_s, deadline)
    found += layers.suggestions()
    found = [own._replace(seconds=own.seconds + launch_s) for own in found]
    return layers.bound_s + launch_s, found


def _memory(instance: Instance, stage: JointStage, counts: tuple[int, int, int]) -> HostMemory:
    return host_memory(
        instance, stage.column, stage.mode, stage.sizes, stage.place, stage.live_tokens, counts,
        stage.smallest_stage,
    )  # fmt: skip


def _launches_s(instance: Instance, counts: Sequence[int]) -> float:
    return float(np.dot(launches_s(instance), counts))

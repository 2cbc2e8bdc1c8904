"""Real stages from the whole shares that the bounds of a column suggest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from hexisolve.formulation.arrangement import Arrangement, arrange
from hexisolve.formulation.bundled_ring import bundled_ring
from hexisolve.formulation.bundles import Suggestion
from hexisolve.formulation.column_bounds import PLAIN, beside
from hexisolve.formulation.relaxed_layer import ColumnShape
from hexisolve.formulation.relaxed_table import RelaxedProblem
from hexisolve.formulation.small_program import Optimise
from hexisolve.formulation.stage_memory_bound import StateMode
from hexisolve.formulation.stage_pricer import StagePricer
from hexisolve.formulation.work import POLICIES
from hexisolve.solvers.incumbent import PricedReal, RealPool, priced_stage

_NUM_TRIED = 2  # suggestions of a layer, or of a stage, at a time
_LEANINGS = (0.35, 0.7, 1.0)  # how far shares move from speed to room in memory
_GAIN = 1e-4

Units = tuple[int, ...]


def first_stages(pricer: StagePricer, shape: ColumnShape, optimise: Optimise) -> list[Arrangement]:
    """The best of the first suggestions for every policy, and some that lean to memory."""
    every: list[Suggestion] = []
    for layer in pricer.bounds.bundled_layers(shape, PLAIN, optimise):
        every += layer.suggestions()[:_NUM_TRIED]
    if every:
        every += _leaning(pricer, shape, every[0])
    return list(_arranged(pricer, shape, every))


def add_suggested(
    relaxed: RelaxedProblem,
    wanted: Iterable[tuple[Units, StateMode]],
    pool: RealPool,
    optimise: Optimise,
) -> bool:
    """Add stages with a layer that is faster under some policy; whether there were any."""
    entries = {(entry.column.units, entry.column.mode): entry for entry in relaxed.pool}
    found = False
    for units, mode in wanted:
        shape, own = entries[units, mode].shape, pool.setdefault(units, [])
        for stage in _faster(relaxed.pricer, shape, mode, own, optimise):
            own.extend(priced_stage(relaxed.pricer, shape, units, stage))
            found = True
    return found


def add_suited(
    relaxed: RelaxedProblem, suggestions: Mapping[Units, Sequence[Suggestion]], pool: RealPool
) -> bool:
    """Add stages of the best suggestions; whether there were any."""
    shapes = {entry.column.units: entry.shape for entry in relaxed.pool}
    found = False
    for units, every in suggestions.items():
        known = {real.column.stage.ring for real in pool.setdefault(units, [])}
        best = sorted(every, key=lambda own: own.seconds)[:_NUM_TRIED]
        for stage in _arranged(relaxed.pricer, shapes[units], best):
            if stage.ring not in known:
                known.add(stage.ring)
                pool[units] += priced_stage(relaxed.pricer, shapes[units], units, stage)
                found = True
    return found


def _arranged(
    pricer: StagePricer, shape: ColumnShape, suggestions: Iterable[Suggestion]
) -> Iterator[Arrangement]:
    hosts = [[shape.devices[k].id for k in host] for host in shape.hosts]
    rings = (bundled_ring(pricer.instance, hosts, own) for own in suggestions)
    return (arrange(pricer, ring) for ring in dict.fromkeys(rings))


def _leaning(pricer: StagePricer, shape: ColumnShape, fast: Suggestion) -> Iterator[Suggestion]:
    """The same heads, with tokens more and more in proportion to memory."""
    memory = np.array([sum(shape.devices[k].memory_bytes for k in host) for host in shape.hosts])
    blocks = np.array(fast.blocks)
    roomy = memory / memory.sum() * blocks.sum()
    for share in _LEANINGS:
        whole = np.floor(blocks + share * (roomy - blocks)).astype(int)
        whole[int(memory.argmax())] += blocks.sum() - whole.sum()
        yield fast._replace(blocks=tuple(whole.tolist()))


def _faster(
    pricer: StagePricer, shape: ColumnShape, mode: StateMode, pool: Sequence[PricedReal],
    optimise: Optimise,
) -> list[Arrangement]:  # fmt: skip
    """Arranged suggestions of every layer, as far as they are faster than those in the pool."""
    number = beside(mode)
    known = [real.column.stage.layer_s[number] for real in pool]
    found: list[Arrangement] = []
    for place, layer in enumerate(pricer.bounds.bundled_layers(shape, mode, optimise)):
        length, rest = divmod(place, len(pricer.kinds) * len(POLICIES))
        kind, policy = divmod(rest, len(POLICIES))
        suggestions = layer.suggestions()[:_NUM_TRIED]
        for suggestion in suggestions:
            least_s = min((float(own[length, kind, policy]) for own in known), default=np.inf)
            if suggestion.seconds > least_s:
                continue
            for stage in _arranged(pricer, shape, [suggestion]):
                layer_s = stage.layer_s[number]
                if layer_s[length, kind, policy] < least_s * (1.0 - _GAIN):
                    known.append(layer_s)
                    found.append(stage)
    return found

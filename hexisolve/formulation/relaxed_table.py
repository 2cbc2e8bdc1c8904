"""The table of relaxed stage prices of an instance (docs/formulation.md, sections 2-4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hexisolve.data.instance import Instance
from hexisolve.formulation.arrangement import even_prices
from hexisolve.formulation.bundles import Suggestion
from hexisolve.formulation.column_bounds import beside, signature
from hexisolve.formulation.host_memory import StagePlace
from hexisolve.formulation.pipeline_table import (
    FloatArray,
    IntArray,
    PipelineTable,
    usage_states,
)
from hexisolve.formulation.relaxed_layer import ColumnShape, column_shape
from hexisolve.formulation.small_program import Optimise
from hexisolve.formulation.stage_memory_bound import StateMode, state_modes
from hexisolve.formulation.stage_pricer import StagePricer, StagePrices
from hexisolve.formulation.units import UnitClass, devices_of, unit_classes

_MAX_STAGES = 8


class Column(NamedTuple):
    """What a column of the table stands for."""

    units: tuple[int, ...]
    devices: tuple[str, ...]
    mode: StateMode


@dataclass(frozen=True, eq=False)
class RelaxedProblem:
    """The relaxed layout problem of an instance.

    Parameters
    ----------
    table
        Its numbers.
    columns
        What its columns mean.
    classes
        The units.
    pricer
        What priced the columns.
    pool
        Every column, those that are not in the table included.
    keeps_all
        Whether columns that are never better stay in the table.
    """

    table: PipelineTable
    columns: tuple[Column, ...]
    classes: tuple[UnitClass, ...]
    pricer: StagePricer
    pool: tuple[PricedColumn, ...]
    keeps_all: bool


class RealPrices(NamedTuple):
    """The least of real stages of a column.

    Parameters
    ----------
    layer_s
        By what moves beside a layer, ``[length, kind, policy]``.
    pass_s
        ``[length, kind, 1 + policy]`` F, and B of every policy, with nothing beside.
    """

    layer_s: tuple[FloatArray, ...]
    pass_s: FloatArray


class PricedColumn(NamedTuple):
    """A column with its shape, its least transfers in, and its prices."""

    column: Column
    shape: ColumnShape
    entry_s: float
    prices: StagePrices


def relaxed_problem(
    instance: Instance,
    num_stages: int | None = None,
    keep_all: bool = False,
    part: frozenset[str] | None = None,
    max_units: int | None = None,
    deadline: float = np.inf,
) -> RelaxedProblem:
    """Price every column of an instance from below.

    Parameters
    ----------
    instance
        What is to be placed.
    num_stages
        Most stages wanted; None for up to 8.
    keep_all
        Keep columns that are never better by their relaxed prices: real prices may differ.
    part
        Only units whose devices are all in this set; None for the whole cluster.
    max_units
        Only columns of so many units: quickly there, and no bound for the others.
    deadline
        On `time.monotonic`.

    Raises
    ------
    TimeoutError
        When not all columns are priced by the deadline: fewer would not give a bound.
    """
    classes = unit_classes(instance.cluster)
    if part is not None:
        inside = [
            UnitClass(tuple(unit for unit in entry.units if part.issuperset(unit)))
            for entry in classes
        ]
        classes = tuple(entry for entry in inside if entry.count)
    num_units = sum(entry.count for entry in classes)
    most = min(num_units, instance.model.num_layers, num_stages or _MAX_STAGES)
    pricer = StagePricer(instance, most)
    pool: list[PricedColumn] = []
    every = usage_states([entry.count for entry in classes])[1:]
    for counts in every if max_units is None else every[every.sum(axis=1) <= max_units]:
        if time.monotonic() > deadline:
            raise TimeoutError("not all columns could be priced in time")
        devices = devices_of(classes, counts.tolist())
        numbers = [instance.cluster.device_index[device] for device in devices]
        shape = column_shape(pricer.rates, numbers)
        if len(numbers) > 1 and shape.device_bytes_per_s == 0:
            continue
        entry = pricer.entry_s(numbers)
        for mode in state_modes(instance, len(numbers)):
            column = Column(tuple(counts.tolist()), devices, mode)
            prices = _prices(pricer, shape, mode)
            pool.append(PricedColumn(column, shape, entry, prices))
    return _problem(pricer, classes, tuple(pool), keep_all)


def _prices(pricer: StagePricer, shape: ColumnShape, mode: StateMode) -> StagePrices:
    """Exact ones for equal devices of a host of a large cluster, else by the rows.

    There, by docs/plan-space.md, such devices share evenly, so all insides can be priced.
    """
    if pricer.has_bundles and shape.is_uniform and pricer.is_simple:
        return even_prices(pricer, shape, mode)
    return pricer.price(shape, mode)


def sharpened(
    problem: RelaxedProblem,
    wanted: Collection[tuple[tuple[int, ...], StateMode]],
    optimise: Optimise,
    deadline: float = np.inf,
    enough_s: Mapping[tuple[int, ...], RealPrices] | None = None,
    step: float = np.inf,
) -> RelaxedProblem | None:
    """The problem with columns of these units and modes priced more sharply; None: none can be.

    Parameters
    ----------
    optimise
        Solves small linear programs.
    deadline
        What is not worked out by then stays as loose as it is.
    enough_s
        By units, prices of layers that need not be exceeded.
    step
        About how much prices should rise, as a share; without it as much as they can.
    """
    pricer = problem.pricer
    # Columns that look alike share a price, so all of them change together.
    changed = set()
    for entry in problem.pool:
        units, _, mode = entry.column
        key = (signature(entry.shape), beside(mode))
        if (units, mode) in wanted and key not in changed:
            enough = (enough_s or {}).get(units)
            limit = None if enough is None else enough.layer_s[beside(mode)]
            if pricer.bounds.sharpen(entry.shape, mode, optimise, deadline, limit, step):
                changed.add(key)
    if not changed:
        return None
    return _repriced(problem, lambda e: (signature(e.shape), beside(e.column.mode)) in changed)


def _repriced(
    problem: RelaxedProblem, is_changed: Callable[[PricedColumn], bool]
) -> RelaxedProblem:
    pricer = problem.pricer
    pool = tuple(
        entry._replace(prices=pricer.price(entry.shape, entry.column.mode))
        if is_changed(entry)
        else entry
        for entry in problem.pool
    )
    return _problem(pricer, problem.classes, pool, problem.keeps_all)


def joined(
    problem: RelaxedProblem,
    enough_s: Mapping[tuple[int, ...], RealPrices],
    stages: Mapping[tuple[tuple[int, ...], StateMode, StagePlace], float],
    optimise: Optimise,
    deadline: float = np.inf,
) -> tuple[RelaxedProblem | None, dict[tuple[int, ...], list[Suggestion]]]:
    """The problem with some stages bounded jointly (None: none rises), and shares that suit them.

    Also with the least F and B of their columns, each on its own.

    Parameters
    ----------
    enough_s
        By units, prices of passes that need not be exceeded.
    stages
        What a real stage takes there, by units, mode and place.
    deadline
        On `time.monotonic`.
    """
    pricer = problem.pricer
    entries = {(entry.column.units, entry.column.mode): entry for entry in problem.pool}
    changed, passes = set(), set()
    found = dict[tuple[int, ...], list[Suggestion]]()
    for (units, mode, place), real_s in stages.items():
        shape = entries[units, mode].shape
        if units in enough_s and time.monotonic() < deadline:
            pass_s = enough_s[units].pass_s
            if pricer.bounds.sharpen_passes(shape, optimise, deadline, pass_s):
                passes.add(signature(shape))
        if time.monotonic() < deadline and entries[units, mode].prices.time_s[place] < real_s:
            is_raised, own = pricer.join(shape, mode, place, real_s, optimise, deadline)
            found.setdefault(units, []).extend(own)
            if is_raised:
                changed.add((signature(shape), mode))
    if not changed and not passes:
        return None, found
    return _repriced(
        problem,
        lambda e: signature(e.shape) in passes or (signature(e.shape), e.column.mode) in changed,
    ), found


def _problem(
    pricer: StagePricer,
    classes: tuple[UnitClass, ...],
    pool: tuple[PricedColumn, ...],
    keep_all: bool,
) -> RelaxedProblem:
    """The table of a pool of columns, without those that cannot be or are never better."""
    possible = [entry for entry in pool if np.isfinite(entry.prices.time_s).any()]
    units = [np.array(entry.column.units, dtype=np.int64) for entry in possible]
    entries = [entry.entry_s for entry in possible]
    stages = [entry.prices for entry in possible]
    kept = list(range(len(possible))) if keep_all else undominated(units, entries, stages)
    table = make_table(
        pricer, [units[i] for i in kept], [entries[i] for i in kept], [stages[i] for i in kept],
        tuple(entry.count for entry in classes),
    )  # fmt: skip
    columns = tuple(possible[idx].column for idx in kept)
    return RelaxedProblem(table, columns, classes, pricer, pool, keep_all)


def make_table(
    pricer: StagePricer,
    units: Sequence[IntArray],
    entries: Sequence[float],
    stages: Sequence[StagePrices],
    available: tuple[int, ...],
) -> PipelineTable:
    """Put columns together."""
    instance, most = pricer.instance, pricer.max_stages
    finish_s = _spread(instance, most, [stage.finish_s for stage in stages])
    return PipelineTable(
        available=available,
        units=np.array(units, dtype=np.int64).reshape(-1, len(available)),
        time_s=_spread(instance, most, [stage.time_s for stage in stages]),
        total_s=_spread(instance, most, [stage.total_s for stage in stages]),
        forward_s=_spread(instance, most, [stage.forward_s for stage in stages], 0.0),
        backward_s=_spread(instance, most, [stage.backward_s for stage in stages], 0.0),
        finish_s=finish_s.min(axis=0),
        entry_s=np.array(entries, dtype=float),
        num_chunks=pricer.lengths.num_chunks,
    )


def undominated(
    units: Sequence[IntArray], entries: Sequence[float], stages: Sequence[StagePrices]
) -> list[int]:
    """Columns that no other beats with no more units, in any place and with any layers."""
    flat = [
        np.concatenate(
            [
                own.time_s.ravel(),
                own.finish_s.min(axis=0).ravel(),
                own.forward_s.ravel(),
                own.backward_s.ravel(),
            ]
        )
        for own in stages
    ]
    if not all(_is_multiple(own) for own in stages):
        flat = [
            np.concatenate([values, own.total_s.ravel()])
            for values, own in zip(flat, stages, strict=True)
        ]
    sizes, borders = np.array(units), np.array(entries)
    # A column with a smaller sum cannot be dominated by one with a larger sum.
    weights = [np.where(np.isfinite(values), values, 1e9).sum() for values in flat]
    kept: list[int] = []
    for idx in sorted(range(len(flat)), key=lambda idx: (weights[idx], idx)):
        if kept:
            smaller = (sizes[kept] <= sizes[idx]).all(axis=1) & (borders[kept] <= borders[idx])
            if any((flat[kept[k]] <= flat[idx]).all() for k in np.flatnonzero(smaller)):
                continue
        kept.append(idx)
    return sorted(kept)


def _is_multiple(stage: StagePrices) -> bool:
    """Whether the sum over chunks says nothing beyond the time of one."""
    finite = np.isfinite(stage.time_s)
    ratios = stage.total_s[finite] / stage.time_s[finite]
    return bool(np.ptp(ratios) < 1e-9 * ratios.max()) if ratios.size else True


def _spread(
    instance: Instance, num_stages: int, compact: Sequence[FloatArray], nowhere: float = np.inf
) -> FloatArray:
    """``[j, place, layers]`` of every column as ``[j, column, layers after, layers]``."""
    num_layers = instance.model.num_layers
    are_equal = len(set(instance.model.layers)) == 1
    full = np.full((num_stages, len(compact), num_layers + 1, num_layers + 1), nowhere)
    for column, values in enumerate(compact):
        if not are_equal:
            full[:, column] = values
            continue
        for after in range(num_layers):
            inner = num_layers - after
            first_j, stop_j = (0, 1) if after == 0 else (1, num_stages)
            full[first_j:stop_j, column, after, 1:inner] = values[first_j:stop_j, 0, 1:inner]
            full[first_j:stop_j, column, after, inner] = values[first_j:stop_j, 1, inner]
    return full

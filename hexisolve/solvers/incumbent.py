"""First plans: the dynamic program over real stages."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hexisolve.data.instance import Instance
from hexisolve.formulation.arrangement import Arrangement, arrangement_prices
from hexisolve.formulation.pipeline_table import Configuration, PipelineTable
from hexisolve.formulation.relaxed_layer import ColumnShape, column_shape
from hexisolve.formulation.relaxed_table import (
    RelaxedProblem,
    make_table,
    undominated,
)
from hexisolve.formulation.stage_memory_bound import StateMode, state_modes
from hexisolve.formulation.stage_pricer import StagePricer, StagePrices
from hexisolve.formulation.units import UnitClass
from hexisolve.plan.plan import HeadGroup
from hexisolve.solvers.drafts import Draft, DraftStage, fit_memory
from hexisolve.solvers.dynamic_program import solve_relaxed

_MOST_WASTE = 1.6  # unit multisets that waste more than this many times the least are left out


@dataclass(frozen=True, eq=False)
class RealColumn:
    """A column of the real table."""

    units: tuple[int, ...]
    mode: StateMode
    stage: Arrangement


@dataclass(frozen=True, eq=False)
class RealProblem:
    """Real stages as a table."""

    table: PipelineTable
    columns: tuple[RealColumn, ...]


class PricedReal(NamedTuple):
    """A real column with its prices and its transfers in."""

    column: RealColumn
    prices: StagePrices
    entry_s: float


RealPool = dict[tuple[int, ...], list[PricedReal]]


ArrangeColumn = Callable[[StagePricer, ColumnShape], Sequence[Arrangement]]


def real_problem(
    relaxed: RelaxedProblem,
    wanted: Sequence[tuple[int, ...]],
    deadline: float,
    pool: RealPool,
    arrange_column: ArrangeColumn,
) -> RealProblem:
    """Arrange and price the wanted unit multisets, in that order, until the deadline.

    What is priced stays in `pool`; the table holds all of it.
    """
    devices_of = {entry.column.units: entry.column.devices for entry in relaxed.pool}
    for units in wanted:
        if pool and time.monotonic() > deadline:
            break
        if units not in pool:
            pool[units] = _priced(relaxed.pricer, units, devices_of[units], arrange_column)
    found = [entry for entries in pool.values() for entry in entries]
    units_list = [np.array(entry.column.units, dtype=np.int64) for entry in found]
    entries = [entry.entry_s for entry in found]
    prices = [entry.prices for entry in found]
    kept = undominated(units_list, entries, prices)
    table = make_table(
        relaxed.pricer, [units_list[i] for i in kept], [entries[i] for i in kept],
        [prices[i] for i in kept], relaxed.table.available,
    )  # fmt: skip
    return RealProblem(table, tuple(found[idx].column for idx in kept))


def _priced(
    pricer: StagePricer, units: tuple[int, ...], devices: Sequence[str],
    arrange_column: ArrangeColumn,
) -> list[PricedReal]:  # fmt: skip
    numbers = [pricer.instance.cluster.device_index[device] for device in devices]
    shape = column_shape(pricer.rates, numbers)
    stages = arrange_column(pricer, shape)
    return [real for stage in stages for real in priced_stage(pricer, shape, units, stage)]


def priced_stage(
    pricer: StagePricer, shape: ColumnShape, units: tuple[int, ...], stage: Arrangement
) -> list[PricedReal]:
    """An arrangement of a column under every mode."""
    entry_s = pricer.entry_s(shape.numbers)
    return [
        PricedReal(
            RealColumn(units, mode, stage), arrangement_prices(pricer, shape, mode, stage), entry_s
        )
        for mode in state_modes(pricer.instance, len(shape.numbers))
    ]


def wanted_units(relaxed: RelaxedProblem) -> list[tuple[int, ...]]:
    """Unit multisets worth real stages: whole hosts first, then by how busy devices can be.

    Whole hosts are few and carry most good plans, so they are all there when time is short.
    """
    instance = relaxed.pricer.instance
    table = relaxed.table
    layers = np.maximum(np.arange(table.num_layers + 1), 1)
    per_layer = (table.time_s / layers).min(axis=(0, 2, 3))
    best: dict[tuple[int, ...], float] = {}
    num_cut: dict[tuple[int, ...], int] = {}
    for column, seconds in zip(relaxed.columns, per_layer, strict=True):
        devices = [instance.cluster.device(device) for device in column.devices]
        hosts = Counter(device.host for device in devices)
        num_cut[column.units] = sum(
            count < len(instance.cluster.devices_of(host)) for host, count in hosts.items()
        )
        speed = sum(device.dense_flop_per_s for device in devices)
        waste = float(seconds) * speed
        best[column.units] = min(best.get(column.units, np.inf), waste)
    least = min(best.values(), default=0.0)
    return sorted(
        (u for u in best if best[u] <= _MOST_WASTE * least or not num_cut[u]),
        key=lambda u: (num_cut[u] > 0, best[u], u),
    )


def drafts_of(
    instance: Instance,
    classes: Sequence[UnitClass],
    real: RealProblem,
    configurations: Sequence[Configuration],
) -> Iterator[Draft]:
    """Drafts of configurations of a real table, fitted to memory."""
    for configuration in configurations:
        parts = []
        used = [0] * len(classes)
        for choice in configuration:
            column = real.columns[choice.column]
            ring = move_ring(column.stage.ring, renamed(classes, column.units, used))
            used = [a + b for a, b in zip(used, column.units, strict=True)]
            parts.append(DraftStage(ring, choice.num_layers, column.mode, 0))
        fitted = fit_memory(instance, tuple(parts))
        if fitted is not None:
            yield fitted


def renamed(
    classes: Sequence[UnitClass], counts: Sequence[int], used: Sequence[int]
) -> dict[str, str]:
    """Devices of a column's first units -> devices of the first units that are not used yet."""
    names: dict[str, str] = {}
    for entry, count, first in zip(classes, counts, used, strict=True):
        for ours, theirs in zip(entry.units, entry.units[first : first + count], strict=False):
            names |= dict(zip(ours, theirs, strict=True))
    return names


def move_ring(ring: tuple[HeadGroup, ...], names: Mapping[str, str]) -> tuple[HeadGroup, ...]:
    """The same ring on other devices."""
    return tuple(
        HeadGroup(tuple(replace(rank, device=names[rank.device]) for rank in group.ranks))
        for group in ring
    )


def best_configurations(
    real: RealProblem,
    cutoff_s: float,
    num_stages: int | None,
    deadline: float,
    is_first: bool = False,
) -> list[Configuration]:
    """Configurations met by the dynamic program, best first; quick ones for a first plan."""
    met: dict[Configuration, float] = {}

    def remember(configuration: Configuration, value_s: float) -> None:
        met[configuration] = value_s

    solve_relaxed(
        real.table, cutoff_s=cutoff_s, relative_gap=4e-3,
        most_labels=4 if is_first else 32, num_stages=num_stages,
        deadline=deadline, on_configuration=remember,
    )  # fmt: skip
    return sorted(met, key=lambda configuration: met[configuration])

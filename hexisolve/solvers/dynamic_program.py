"""The dynamic program: second exact method for the relaxed layout problem, and its proofs.

Stages are placed from the last one; labels (`hexisolve.solvers.labels`) of (stages placed, units
used, layers covered) carry what later rows need. Where a place has too many labels, neighbours are
merged into one that is better than each of them: fast, and still a bound. Rounds with more and more
labels per place close what merging left open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hexisolve.formulation.pipeline_rows import extra_s
from hexisolve.formulation.pipeline_table import (
    Choice,
    Configuration,
    FloatArray,
    IntArray,
    PipelineTable,
    state_strides,
    usage_states,
)
from hexisolve.formulation.twins import Twins
from hexisolve.solvers.labels import Labels, first_label, joined, merged, undominated

_LABELS_PER_PLACE = (4, 32, 256, 2048)
_NUM_REPORTED = 24  # configurations told of in every round


@dataclass(frozen=True)
class RelaxedOptimum:
    """What the dynamic program proved.

    Parameters
    ----------
    configuration
        Best configuration found; None when there is none below the cutoff.
    value_s
        Its relaxed step time; the cutoff without one.
    bound_s
        No configuration takes less.
    is_complete
        Whether bound and value met within the gap asked for.
    """

    configuration: Configuration | None
    value_s: float
    bound_s: float
    is_complete: bool


@dataclass(frozen=True)
class _Round:
    """What one round gave: the least step of a label, and whether labels were merged."""

    least_s: float
    is_merged: bool
    is_late: bool
    configurations: tuple[Configuration, ...]


class _Graph:
    """States of use of a table and how columns lead from one to the next."""

    def __init__(self, table: PipelineTable) -> None:
        self.table = table
        self.twins = Twins(table)
        every = usage_states(table.available)
        strides = state_strides(table.available)
        kept = (self.twins.canonical(every) == every).all(axis=1)
        numbers = np.cumsum(kept) - 1
        self.states = every[kept]
        room = np.array(table.available)
        # [column][state] state after the column is taken; -1 where it does not fit.
        self.targets: dict[int, IntArray] = {}
        seen: set[bytes] = set()
        for column in range(table.num_columns):
            after = self.states + table.units[column]
            fits = (after <= room).all(axis=1)
            target = np.full(len(self.states), -1, dtype=np.int64)
            target[fits] = numbers[self.twins.canonical(after[fits]) @ strides]
            # Of columns with equal ends and prices one is enough.
            key = target.tobytes() + self.twins.price_ids[column].tobytes()
            if key not in seen:
                seen.add(key)
                self.targets[column] = target
        self.rest = self._rest()

    def _rest(self) -> FloatArray:
        """``[state, layers covered]`` least seconds that the layers not yet covered take.

        The best column that fits into the units left, at its least seconds per layer.
        """
        table, num_layers = self.table, self.table.num_layers
        layers = np.maximum(np.arange(num_layers + 1), 1)
        per_layer = (table.time_s / layers).min(axis=(0, 2, 3))
        left = np.array(table.available) - self.states
        fits = (table.units[None, :, :] <= left[:, None, :]).all(axis=2)
        best = np.where(fits, per_layer[None, :], np.inf).min(axis=1, initial=np.inf)
        missing = num_layers - np.arange(num_layers + 1)
        with np.errstate(invalid="ignore"):
            rest = best[:, None] * missing[None, :] * (1 - 1e-12)
        return np.where(missing[None, :] == 0, 0.0, rest)

    def capacity(self, limit_s: float) -> FloatArray:
        """``[state]`` most layers that the units left carry when no stage alone exceeds a step."""
        table = self.table
        alone = (table.total_s + table.finish_s[None]).min(axis=0)
        layers = np.arange(table.num_layers + 1)
        most = np.where(alone < limit_s, layers, 0).max(axis=(1, 2))
        capacity = np.zeros(len(self.states))
        for _ in range(table.max_stages):
            before = capacity.copy()
            for column, target in self.targets.items():
                fits = target >= 0
                gained = most[column] + before[target[fits]]
                capacity[fits] = np.maximum(capacity[fits], gained)
            if (capacity == before).all():
                break
        return capacity


class _Rounds:
    """Rounds of the dynamic program over one table."""

    def __init__(self, table: PipelineTable, num_stages: int | None, deadline: float) -> None:
        self.table, self.deadline = table, deadline
        self.num_stages = num_stages
        self.graph = _Graph(table)

    def run(self, limit_s: float, most: int) -> _Round:
        """Place stages as long as a label stays below `limit_s`."""
        num_layers = self.table.num_layers
        capacity = self.graph.capacity(limit_s)
        levels = [first_label()]
        whole: list[tuple[float, int, int]] = []
        is_merged = False
        last = self.table.max_stages if self.num_stages is None else self.num_stages
        for j in range(last):
            parts = []
            for part in self._extended(levels[-1], j, limit_s, capacity):
                if part is None:
                    open_s = min(self._least(levels[-1]), *(s for s, _, _ in whole), np.inf)
                    return _Round(open_s, True, True, self._traced(levels, whole))
                parts.append(part)
            found = joined(parts)
            is_whole = found.covered == num_layers
            ends = found.take(np.flatnonzero(is_whole))
            best = np.argsort(ends.step_s, kind="stable")[:_NUM_REPORTED]
            found = undominated(found.take(np.flatnonzero(~is_whole)), num_layers)
            found, some = merged(found, num_layers, most)
            is_merged |= some
            levels.append(joined([found, ends.take(best)]))
            if self.num_stages in (None, j + 1):
                whole += [
                    (float(step_s), j + 1, len(found) + position)
                    for position, step_s in enumerate(ends.step_s[best].tolist())
                ]
            if not len(found):
                break
        least = min([limit_s, *(step_s for step_s, _, _ in whole)])
        return _Round(least, is_merged, False, self._traced(levels, whole))

    def _least(self, labels: Labels) -> float:
        """No completion of these labels is below."""
        rest = self.graph.rest[labels.state, labels.covered]
        return float((labels.step_s + rest).min(initial=np.inf))

    def _extended(
        self, labels: Labels, j: int, limit_s: float, capacity: FloatArray
    ) -> Iterator[Labels | None]:
        """Labels with one stage more, column by column; None when time is up."""
        table, num_layers = self.table, self.table.num_layers
        is_open = labels.covered < num_layers
        for column, target in self.graph.targets.items():
            if time.monotonic() > self.deadline:
                yield None
                return
            alone = table.total_s[j, column] + table.finish_s[column]
            possible = alone < limit_s
            if not possible.any():
                continue
            usable = is_open & (target[labels.state] >= 0) & possible.any(axis=1)[labels.covered]
            rows = np.flatnonzero(usable)
            if not len(rows):
                continue
            row, layers = np.nonzero(possible[labels.covered[rows]])
            rows = rows[row]
            covered = labels.covered[rows]
            place = (j, column, covered, layers)
            own, forward, backward = (
                values[place] for values in (table.time_s, table.forward_s, table.backward_s)
            )
            behind = labels.behind.take(rows)
            extra = extra_s(table.num_chunks, behind, own, table.total_s[place], forward, backward)
            worst = np.maximum(labels.worst[rows], extra)
            finish = np.maximum(labels.finish[rows], table.finish_s[column, covered, layers])
            covered = covered + layers
            entry = np.where(covered < num_layers, table.entry_s[column], 0.0)
            seconds = behind.seconds + own + entry
            state = target[labels.state[rows]]
            step_s = seconds + worst + finish + self.graph.rest[state, covered]
            stays = (step_s < limit_s) & (num_layers - covered <= capacity[state])
            if self.num_stages is not None:
                stays &= (covered == num_layers) == (j + 1 == self.num_stages)
            kept = np.flatnonzero(stays)
            if len(kept):
                behind = behind.take(kept).with_stage(
                    own[kept], forward[kept], backward[kept], entry[kept]
                )
                yield Labels(
                    state[kept], covered[kept], behind, worst[kept], finish[kept], rows[kept],
                    np.full(len(kept), column), layers[kept],
                )  # fmt: skip

    def _traced(
        self, levels: list[Labels], whole: list[tuple[float, int, int]]
    ) -> tuple[Configuration, ...]:
        """The configurations behind the best labels of whole pipelines, each once."""
        found: dict[Configuration, None] = {}
        for _, level, position in sorted(whole)[:_NUM_REPORTED]:
            chosen = []
            for number in range(level, 0, -1):
                labels = levels[number]
                column, layers = int(labels.column[position]), int(labels.layers[position])
                first = self.table.num_layers - int(labels.covered[position])
                chosen.append(Choice(column, first, layers))
                position = int(labels.parent[position])
            found[self.graph.twins.assign(tuple(chosen))] = None
        return tuple(found)


def solve_relaxed(
    table: PipelineTable,
    *,
    cutoff_s: float,
    relative_gap: float = 1e-9,
    num_stages: int | None = None,
    deadline: float = np.inf,
    floor_s: float = 0.0,
    most_labels: int = _LABELS_PER_PLACE[-1],
    on_configuration: Callable[[Configuration, float], None] | None = None,
) -> RelaxedOptimum:
    """Minimise the relaxed step time over all configurations of a table.

    Parameters
    ----------
    table
        Relaxed prices.
    cutoff_s
        Only configurations below this step time are wanted.
    relative_gap
        Bound and value may differ by this share of the value.
    num_stages
        Exact number of stages; None for any.
    deadline
        `time.monotonic` after which the search stops with what is proved.
    floor_s
        A bound known beforehand.
    most_labels
        Labels per place in the last round.
    on_configuration
        Called with every configuration met and its relaxed value.
    """
    best: Configuration | None = None
    value, bound = cutoff_s, floor_s
    if not table.num_columns or not np.isfinite(table.time_s).any():
        return RelaxedOptimum(None, cutoff_s, cutoff_s, True)
    rounds = _Rounds(table, num_stages, deadline)
    for most in (count for count in _LABELS_PER_PLACE if count <= most_labels):
        if bound >= value * (1 - relative_gap) and best is not None:
            break
        # Without a configuration the whole range below the cutoff is in question.
        limit_s = value if best is None else value * (1 - relative_gap)
        outcome = rounds.run(limit_s, most)
        bound = max(bound, min(outcome.least_s, value))
        for configuration in outcome.configurations:
            found = table.value_s(configuration)
            if on_configuration is not None:
                on_configuration(configuration, found)
            if found < value:
                best, value = configuration, found
        if outcome.is_late or not outcome.is_merged:
            break
    bound = min(bound, value)
    return RelaxedOptimum(best, value, bound, bound >= value * (1 - relative_gap))

"""The dynamic program: second exact method for the relaxed layout problem, and its proofs.

With limits ``c >= k X_j + (n - 1 - k j) t_j + f_j`` and ``tau >= n t_j + f_j`` fixed, the least
``S = sum (t_j + x_j)`` is a shortest path over (units used, layers covered), built from the last
stage: F2 only asks that X_j, the path so far, is small. Then ``T = max(tau, S + c)`` (F1, F2).
S falls when c or tau grow, so for a box of both

    T >= max(tau_low, S(c_high, tau_high) + c_low)

and boxes are split, least bound first, until the bound meets the best configuration found.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from hexisolve.formulation.pipeline_table import (
    Choice,
    Configuration,
    FloatArray,
    IntArray,
    PipelineTable,
    state_strides,
    usage_states,
)


class Box(NamedTuple):
    """Ranges of c and tau."""

    low: tuple[float, float]
    high: tuple[float, float]


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
        False when the time limit ended the search before bound and value met.
    """

    configuration: Configuration | None
    value_s: float
    bound_s: float
    is_complete: bool


class _Paths:
    """Shortest paths through a table for given limits on c and tau."""

    def __init__(self, table: PipelineTable, num_stages: int | None) -> None:
        self.table = table
        self.num_stages = num_stages
        self.states = usage_states(table.available)
        strides = state_strides(table.available)
        shifts = table.units @ strides
        fits = (self.states[:, None, :] + table.units[None, :, :] <= np.array(table.available)).all(
            axis=2
        )
        sources, columns = np.nonzero(fits)
        targets = sources + shifts[columns]
        order = np.argsort(targets, kind="stable")
        self.sources: IntArray = sources[order]
        self.columns: IntArray = columns[order]
        self.targets: IntArray = targets[order]
        self.num_layers = table.num_layers
        # Infinite seconds would turn differences and products into NaN; as large they do not.
        self.seconds: FloatArray = np.where(np.isfinite(table.time_s), table.time_s, 0.0)
        self.rest = self._rest()

    def _rest(self) -> FloatArray:
        """``[state, layers covered]`` least seconds that the layers not yet covered add to S.

        The best column that fits into the units left, at its least seconds per layer.
        """
        table, num_layers = self.table, self.num_layers
        layers = np.maximum(np.arange(num_layers + 1), 1)
        per_layer = (table.time_s / layers).min(axis=(0, 2, 3))
        left = np.array(table.available) - self.states
        fits = (table.units[None, :, :] <= left[:, None, :]).all(axis=2)
        best = np.where(fits, per_layer[None, :], np.inf).min(axis=1, initial=np.inf)
        missing = num_layers - np.arange(num_layers + 1)
        with np.errstate(invalid="ignore"):
            rest = best[:, None] * missing[None, :]
        return np.where(missing[None, :] == 0, 0.0, rest) * (1 - 1e-12)

    def shortest(
        self, limits: tuple[float, float], most_s: float
    ) -> tuple[float, Configuration | None]:
        """Least S under the limits (c, tau), and a configuration that has it.

        Paths that cannot end with S up to `most_s` are dropped.
        """
        table, num_layers = self.table, self.num_layers
        limit, tallest = limits
        best, best_stage = np.inf, -1
        fronts: list[FloatArray] = []
        front = np.full((len(self.states), num_layers + 1), np.inf)
        front[0, 0] = 0.0
        fronts.append(front)
        stages = table.max_stages if self.num_stages is None else self.num_stages
        for j in range(stages):
            allowed = self._allowed(j, limit, tallest)
            front, ended = self._extend(front, allowed, j, limit, min(most_s, best))
            if (self.num_stages is None or j == self.num_stages - 1) and ended < best:
                best, best_stage = ended, j
            fronts.append(front)
            if not np.isfinite(front).any():
                break
        if best_stage < 0 or best > most_s:
            return np.inf, None
        return best, self._trace(fronts, best, best_stage, limits)

    def _allowed(self, j: int, limit: float, tallest: float) -> FloatArray:
        """Seconds of the stages that are within the limits on their own, infinite elsewhere."""
        table, n = self.table, self.table.num_chunks
        if j == 0:
            alone = table.total_s[0] - self.seconds[0] + table.finish_s
        elif loops := table.loops(j):
            alone = min((n - 1 - k * j) for k in loops) * self.seconds[j] + table.finish_s
        else:
            alone = table.finish_s
        fits = (alone <= limit) & (table.total_s[j] + table.finish_s <= tallest)
        return np.where(fits, table.time_s[j], np.inf)

    def _extend(
        self, front: FloatArray, allowed: FloatArray, j: int, limit: float, most: float
    ) -> tuple[FloatArray, float]:
        """Add one stage in front: the new front, and the least S when it is the first stage."""
        table, num_layers, n = self.table, self.num_layers, self.table.num_chunks
        following = np.full_like(front, np.inf)
        ended = np.inf
        alive = np.isfinite(front).any(axis=1)
        possible = np.isfinite(allowed).any(axis=(1, 2))
        use = alive[self.sources] & possible[self.columns]
        sources, columns, targets = self.sources[use], self.columns[use], self.targets[use]
        loops = table.loops(j)
        for layers in range(1, num_layers + 1):
            by_column = allowed[:, : num_layers + 1 - layers, layers]
            usable = np.isfinite(by_column).any(axis=1)[columns]
            if not usable.any():
                continue
            own_columns, own_targets = columns[usable], targets[usable]
            behind = front[sources[usable], : num_layers + 1 - layers]
            seconds = by_column[own_columns]
            total = behind + seconds
            for k in loops:
                row = k * behind + (n - 1 - k * j) * seconds
                row += table.finish_s[own_columns, : num_layers + 1 - layers, layers]
                total[~(row <= limit)] = np.inf
            ended = min(ended, float(total[:, -1].min()))
            if total.shape[1] == 1:
                continue
            total = total[:, :-1] + table.entry_s[own_columns][:, None]
            starts = np.flatnonzero(np.r_[True, own_targets[1:] != own_targets[:-1]])
            least = np.minimum.reduceat(total, starts, axis=0)
            rows = own_targets[starts]
            part = following[rows, layers:num_layers]
            following[rows, layers:num_layers] = np.minimum(part, least)
        following[following + self.rest > most] = np.inf
        return following, ended

    def _trace(
        self, fronts: list[FloatArray], best: float, best_stage: int, limits: tuple[float, float]
    ) -> Configuration:
        """Walk back from the first stage to the last."""
        table, num_layers = self.table, self.num_layers
        limit, tallest = limits
        n = table.num_chunks
        chosen: list[Choice] = []
        wanted, state, covered = best, -1, num_layers
        for j in range(best_stage, -1, -1):
            is_first = covered == num_layers and not chosen
            found = None
            pairs = slice(None) if state < 0 else np.flatnonzero(self.targets == state)
            sources, columns = self.sources[pairs], self.columns[pairs]
            allowed = self._allowed(j, limit, tallest)
            for layers in range(1, covered + 1):
                after = covered - layers
                seconds = allowed[columns, after, layers]
                behind = fronts[j][sources, after]
                total = behind + seconds
                if not is_first:
                    total = total + table.entry_s[columns]
                for k in table.loops(j):
                    row = k * behind + (n - 1 - k * j) * seconds
                    row += table.finish_s[columns, after, layers]
                    total[~(row <= limit)] = np.inf
                idx = int(np.argmin(np.abs(total - wanted))) if len(total) else 0
                if len(total) and abs(total[idx] - wanted) <= 1e-12 * max(wanted, 1e-300):
                    found = (int(columns[idx]), layers, int(sources[idx]), float(behind[idx]))
                    break
            assert found is not None, "the shortest path has no way back"
            column, layers, state, wanted = found
            chosen.append(Choice(column, num_layers - covered, layers))
            covered -= layers
        return tuple(chosen)


def solve_relaxed(
    table: PipelineTable,
    *,
    cutoff_s: float,
    relative_gap: float = 1e-9,
    num_stages: int | None = None,
    deadline: float = np.inf,
    on_configuration: Callable[[Configuration, float], None] | None = None,
) -> RelaxedOptimum:
    """Minimise F1 and F2 over all configurations of a table.

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
    on_configuration
        Called with every configuration met and its relaxed value.
    """
    best: Configuration | None = None
    value = cutoff_s
    if not np.isfinite(table.time_s).any():
        return RelaxedOptimum(None, cutoff_s, cutoff_s, True)
    paths = _Paths(table, num_stages)
    ticket = count()
    heap: list[tuple[float, int, Box, tuple[float, float]]] = []

    def consider(box: Box) -> None:
        nonlocal best, value
        limits = (min(box.high[0], value), min(box.high[1], value))
        shortest, configuration = paths.shortest(limits, value - box.low[0])
        bound = max(box.low[1], shortest + box.low[0])
        if configuration is None or bound >= value:
            return
        total, *used = table.needs_s(configuration)
        found = max(used[1], total + used[0])
        if on_configuration is not None:
            on_configuration(configuration, found)
        if found < value:
            best, value = configuration, found
        heapq.heappush(heap, (bound, next(ticket), Box(box.low, limits), (used[0], used[1])))

    consider(Box((0.0, 0.0), (cutoff_s, cutoff_s)))
    is_complete = True
    bound = value
    while heap:
        bound, _, box, used = heapq.heappop(heap)
        if bound >= value * (1 - relative_gap):
            break
        if time.monotonic() > deadline:
            is_complete = False
            break
        for half in _split(box, used):
            consider(half)
        bound = value
    return RelaxedOptimum(best, value, min(bound, value), is_complete)


def _split(box: Box, used: tuple[float, float]) -> tuple[Box, Box]:
    """Cut the range that costs most between the box's corner and what its path needs."""
    axis = 0 if used[0] - box.low[0] >= used[1] - box.low[1] else 1
    middle = (box.low[axis] + min(used[axis], box.high[axis])) / 2
    if axis == 0:
        return (
            Box(box.low, (middle, box.high[1])),
            Box((middle, box.low[1]), box.high),
        )
    return Box(box.low, (box.high[0], middle)), Box((box.low[0], middle), box.high)

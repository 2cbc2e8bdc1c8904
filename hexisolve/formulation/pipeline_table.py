"""Relaxed prices of every possible pipeline stage as plain numbers, and the rows that join them.

A *column* is a kind of stage: how many units of each class it takes, and its ZeRO mode. Stages are
counted from the end: j stages come after a stage, so ``min(n, j + 1)`` chunks are in flight in it.
With t_j = F + B of a chunk, x_j the two transfers into stage j (0 for the first stage) and
``S = sum (t_j + x_j)``, a step of n chunks takes at least S, plus the most that a row of one stage
adds (`hexisolve.formulation.pipeline_rows`), plus ``f = max_j f_j``; f_j is what stage j alone
adds after the pipeline: gradient synchronisation and optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hexisolve.formulation.pipeline_rows import extra_s, nothing_behind

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class Choice(NamedTuple):
    """One stage of a configuration: which column takes which layers."""

    column: int
    first_layer: int
    num_layers: int


Configuration = tuple[Choice, ...]  # from the first stage to the last


class StageSeconds(NamedTuple):
    """Seconds of a stage: of the shortest chunk, of all chunks, least F and least B."""

    time_s: float
    total_s: float
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True, eq=False)
class PipelineTable:
    """Numbers of the relaxed layout problem.

    Parameters
    ----------
    available
        Units of each class.
    units
        ``[column, class]`` units a column takes.
    time_s
        ``[j, column, layers after the stage, layers of the stage]``: least F + B seconds of a
        chunk; infinite when no legal stage is like that.
    entry_s
        ``[column]`` least seconds of the two transfers into a stage that is not the first.
    finish_s
        ``[column, layers after, layers]``: f_j, least seconds after the pipeline.
    num_chunks
        n.
    total_s
        Like `time_s`, the sum over all chunks: n t where chunks are equal. With unequal chunks
        `time_s` speaks of the shortest, F1 of the sum.
    forward_s, backward_s
        Like `time_s`: least F and least B of a chunk, together at most `time_s`; 0 is always right.
    """

    available: tuple[int, ...]
    units: IntArray
    time_s: FloatArray
    entry_s: FloatArray
    finish_s: FloatArray
    num_chunks: int
    total_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self.units)

    @property
    def num_layers(self) -> int:
        """L."""
        return int(self.time_s.shape[3]) - 1

    @property
    def max_stages(self) -> int:
        """Largest number of stages the table speaks about."""
        return int(self.time_s.shape[0])

    def loops(self, stages_after: int) -> tuple[int, ...]:
        """The values of k for which F2 is written at a stage."""
        most = (self.num_chunks - 1) // (stages_after + 1)
        if stages_after == 0 or most < 1:
            return ()
        return (1,) if most == 1 else (1, most)

    def value_s(self, configuration: Configuration) -> float:
        """Least step time of a configuration by F1, F2 and F3."""
        seconds = []
        after = 0
        for j, choice in enumerate(reversed(configuration)):
            place = (j, choice.column, after, choice.num_layers)
            arrays = (self.time_s, self.total_s, self.forward_s, self.backward_s)
            seconds.append(StageSeconds(*(float(values[place]) for values in arrays)))
            after += choice.num_layers
        return self.value_of(configuration, seconds[::-1])

    def worst_s(self) -> float:
        """A step time that no configuration exceeds."""
        finite = self.time_s[self.time_s < math.inf]
        if not finite.size:
            return 1.0
        # Rows take the shortest chunk and, where chunks differ, the sum over all of them.
        longest = float(self.total_s[self.total_s < math.inf].max())
        finish = float(self.finish_s[self.finish_s < math.inf].max())
        slowest = float(finite.max() + self.entry_s.max())
        return (
            2 * (self.num_chunks + self.max_stages) * self.max_stages * slowest
            + longest
            + finish
            + 1.0
        )

    def value_of(self, configuration: Configuration, seconds: Sequence[StageSeconds]) -> float:
        """The same for other seconds of the stages, in order."""
        behind, worst, finish = nothing_behind(), 0.0, 0.0
        if not np.isfinite([own.time_s for own in seconds]).all():
            return math.inf
        after = 0
        for choice, own in zip(reversed(configuration), reversed(seconds), strict=True):
            finish = max(finish, float(self.finish_s[choice.column, after, choice.num_layers]))
            time_s, total_s, forward_s, backward_s = (np.array([value]) for value in own)
            row = extra_s(self.num_chunks, behind, time_s, total_s, forward_s, backward_s)
            worst = max(worst, float(row[0]))
            after += choice.num_layers
            entry = self.entry_s[[choice.column]] if after < self.num_layers else np.zeros(1)
            behind = behind.with_stage(time_s, forward_s, backward_s, entry)
        return float(behind.seconds[0]) + worst + finish


def usage_states(available: Sequence[int]) -> IntArray:
    """Every way to use units, ``[state, class]``, in the order of `state_index`."""
    grids = np.indices([count + 1 for count in available]).reshape(len(available), -1)
    return np.ascontiguousarray(grids.T).astype(np.int64)


def state_strides(available: Sequence[int]) -> IntArray:
    """Strides that turn a usage into its position: ``state = sum usage x stride``."""
    sizes = np.array([count + 1 for count in available], dtype=np.int64)
    return np.array([sizes[idx + 1 :].prod() for idx in range(len(sizes))], dtype=np.int64)


def layer_splits(num_layers: int, num_stages: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut `num_layers` into `num_stages` parts of at least one layer, in order.

    >>> list(layer_splits(3, 2))
    [(1, 2), (2, 1)]
    """
    if num_stages == 1:
        if num_layers >= 1:
            yield (num_layers,)
        return
    for first in range(1, num_layers - num_stages + 2):
        for rest in layer_splits(num_layers - first, num_stages - 1):
            yield (first, *rest)

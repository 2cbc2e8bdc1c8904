"""Pipelines whose operations share edges: what runs at one time divides an edge's bytes per second.

The part of equation 12 of docs/cost-model.md that the longest path leaves out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from hexisolve.cost.pipeline import PipelineTimes, Schedule
from hexisolve.data.cluster import Edge

Wants: TypeAlias = Mapping[Edge, float]
"""Edge -> the share of its bytes/s that an operation uses when it runs alone, 0 to 1."""

_SAME_MOMENT = 1e-12
_FULL = 1.0 + 1e-9


class Work(NamedTuple):
    """An operation or a transfer: seconds when it runs alone, and the edges it wants."""

    seconds: float
    wants: Wants


@dataclass(frozen=True)
class SharedPipeline:
    """The operations of one replica.

    Parameters
    ----------
    schedule
        Per stage, ``("F" | "B", chunk)`` in order, free of deadlocks.
    forward, backward
        ``[stage][chunk]``.
    transfer_forward, transfer_backward
        ``[p][chunk]``: between stages p and p + 1.
    """

    schedule: Schedule
    forward: Sequence[Sequence[Work]]
    backward: Sequence[Sequence[Work]]
    transfer_forward: Sequence[Sequence[Work]]
    transfer_backward: Sequence[Sequence[Work]]


def crowded_edges(peaks: Iterable[Wants]) -> frozenset[Edge]:
    """Edges that their users may want more of than there is.

    Parameters
    ----------
    peaks
        Per user (a stage of a replica), the most it wants of each edge at one time.
    """
    total: dict[Edge, float] = {}
    largest: dict[Edge, float] = {}
    for wants in peaks:
        for edge, share in wants.items():
            total[edge] = total.get(edge, 0.0) + share
            largest[edge] = max(largest.get(edge, 0.0), share)
    # One user alone already waits for the edge inside its own operations.
    return frozenset(e for e, share in total.items() if share > max(_FULL, largest[e]))


def shared_times_s(pipelines: Sequence[SharedPipeline]) -> tuple[PipelineTimes, ...]:
    """Times of all operations of all replicas when they divide the edges that they want.

    ``speed = min over edges min(1, level / want)``: everything that runs gets what it wants of an
    edge up to a level, which is set so that the edge is full (max-min fair), and an operation goes
    at the pace of the edge that holds it up most. Order and inputs are those of `step_length_s`,
    which is the result when no edge is full; no result is smaller.
    """
    play = _Play(pipelines)
    play.run()
    return tuple(
        PipelineTimes(
            tuple(map(tuple, play.starts_s[number])),
            max((row[-1] for row in play.ends_s[number] if row), default=0.0),
            tuple(
                sum(ends) - sum(starts)
                for starts, ends in zip(play.starts_s[number], play.ends_s[number], strict=True)
            ),
        )
        for number in range(len(pipelines))
    )


@dataclass(slots=True, eq=False)
class _Task:
    """Something that runs.

    Parameters
    ----------
    what
        (stage, kind, chunk): the operation, or the one that a transfer brings the input for.
    left_s
        Seconds alone that are still to do.
    """

    replica: int
    work: Work
    what: tuple[int, str, int]
    is_transfer: bool = False
    left_s: float = 0.0
    speed: float = 1.0


@dataclass(slots=True)
class _Play:
    """One play of all pipelines."""

    pipelines: Sequence[SharedPipeline]
    starts_s: list[list[list[float]]] = field(init=False)
    ends_s: list[list[list[float]]] = field(init=False)
    _inputs: list[set[tuple[int, str, int]]] = field(init=False)
    """Operations whose input is there."""
    _alone: list[tuple[float, int, _Task]] = field(default_factory=list)
    _num_alone: int = 0
    _sharing: list[_Task] = field(default_factory=list)
    _has_changed: bool = False
    _now_s: float = 0.0

    def __post_init__(self) -> None:
        self.starts_s = [[[] for _ in own.schedule] for own in self.pipelines]
        self.ends_s = [[[] for _ in own.schedule] for own in self.pipelines]
        self._inputs = [set() for _ in self.pipelines]

    def run(self) -> None:
        """Play to the end."""
        for replica, own in enumerate(self.pipelines):
            for stage in range(len(own.schedule)):
                self._go_on(replica, stage)
        while self._alone or self._sharing:
            if self._has_changed:
                _set_speeds(self._sharing)
                self._has_changed = False
            self._advance()

    def _advance(self) -> None:
        """Go to the next end of anything, and start what it lets start."""
        passed_s = min((task.left_s / task.speed for task in self._sharing), default=math.inf)
        if self._alone and self._alone[0][0] < self._now_s + passed_s:
            passed_s = self._alone[0][0] - self._now_s
        self._now_s += passed_s
        latest_s = self._now_s * _SAME_MOMENT
        ended: list[_Task] = []
        going_on: list[_Task] = []
        for task in self._sharing:
            task.left_s -= passed_s * task.speed
            (ended if task.left_s <= latest_s * task.speed else going_on).append(task)
        if ended:
            self._sharing = going_on
            self._has_changed = True
        while self._alone and self._alone[0][0] <= self._now_s + latest_s:
            ended.append(heapq.heappop(self._alone)[2])
        for task in ended:
            self._end(task)

    def _start(self, task: _Task) -> None:
        if task.work.wants:
            task.left_s = task.work.seconds
            self._sharing.append(task)
            self._has_changed = True
        else:
            self._num_alone += 1
            heapq.heappush(self._alone, (self._now_s + task.work.seconds, self._num_alone, task))

    def _go_on(self, replica: int, stage: int) -> None:
        """Start the next operation of a stage when the stage is idle and the input is there."""
        own = self.pipelines[replica]
        starts = self.starts_s[replica][stage]
        is_busy = len(starts) > len(self.ends_s[replica][stage])
        if is_busy or len(starts) == len(own.schedule[stage]):
            return
        kind, chunk = own.schedule[stage][len(starts)]
        needs_input = stage > 0 or kind == "B"
        if needs_input and (stage, kind, chunk) not in self._inputs[replica]:
            return
        starts.append(self._now_s)
        work = (own.forward if kind == "F" else own.backward)[stage][chunk]
        self._start(_Task(replica, work, (stage, kind, chunk)))

    def _end(self, task: _Task) -> None:
        """What has ended hands on its result."""
        replica, own = task.replica, self.pipelines[task.replica]
        stage, kind, chunk = task.what
        if task.is_transfer:
            self._inputs[replica].add(task.what)
            self._go_on(replica, stage)
            return
        self.ends_s[replica][stage].append(self._now_s)
        if kind == "F" and stage == len(own.schedule) - 1:
            self._inputs[replica].add((stage, "B", chunk))
        elif kind == "F":
            move = own.transfer_forward[stage][chunk]
            self._start(_Task(replica, move, (stage + 1, "F", chunk), is_transfer=True))
        elif stage:
            move = own.transfer_backward[stage - 1][chunk]
            self._start(_Task(replica, move, (stage - 1, "B", chunk), is_transfer=True))
        self._go_on(replica, stage)


def _set_speeds(tasks: Sequence[_Task]) -> None:
    """Divide every edge among what runs now."""
    wanted: dict[Edge, list[float]] = {}
    for task in tasks:
        for edge, share in task.work.wants.items():
            wanted.setdefault(edge, []).append(share)
    levels = {edge: _level(shares) for edge, shares in wanted.items() if sum(shares) > _FULL}
    for task in tasks:
        task.speed = 1.0
        for edge, share in task.work.wants.items():
            level = levels.get(edge, 1.0)
            if share > level:
                task.speed = min(task.speed, level / share)


def _level(shares: Sequence[float]) -> float:
    """The level at which `sum over wants min(want, level) = 1`."""
    free, left = 1.0, len(shares)
    for share in sorted(shares):
        if share * left > free:
            break
        free -= share
        left -= 1
    return free / left

"""Pipelines whose operations share edges: what runs at one time divides an edge's bytes per second.

The part of equation 12 of docs/cost-model.md that the longest path leaves out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from hexisolve.cost.pipeline import PipelineTimes, Schedule
from hexisolve.data.cluster import Edge

Wants: TypeAlias = Mapping[Edge, float]
"""Edge -> a share of its bytes per second."""

_SAME_MOMENT = 1e-12
_SETTLED = 1e-5
_MOST_ROUNDS = 60


@dataclass(frozen=True, eq=False)
class Work:
    """An operation or a transfer.

    Parameters
    ----------
    seconds
        When it runs alone.
    wants
        Edges it shares, with the share of each that it uses on average when it runs alone.
    seconds_with
        Seconds when it is left with the given shares of edges: not less than `seconds`, nor than
        any edge then needs for its bytes.
    """

    seconds: float
    wants: Wants
    seconds_with: Callable[[Wants], float]


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


def shared_times_s(pipelines: Sequence[SharedPipeline]) -> tuple[PipelineTimes, ...]:
    """Times of all operations of all replicas when they divide the edges that they want.

    At every moment each of the k works that want an edge is left with what the others do not use
    on average, or with an even part of it:

        left_i = max(1 - sum_{j != i} want_j speed_j, 1 / k)
        speed_i = seconds_i / seconds_i(left_i)

    Order and inputs are those of `step_length_s`, which is the result when nothing that shares
    edges runs at one time; no result is smaller.
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
    _known: dict[tuple[int, ...], dict[int, float]] = field(default_factory=dict)
    """Works that meet -> their speeds, by id."""
    _speed: dict[int, float] = field(default_factory=dict)
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
                self._set_speeds()
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

    def _set_speeds(self) -> None:
        for works in _meeting([task.work for task in self._sharing]):
            key = tuple(sorted(map(id, works)))
            if key not in self._known:
                found = zip(works, _speeds(works), strict=True)
                self._known[key] = {id(work): speed for work, speed in found}
            self._speed |= self._known[key]
        for task in self._sharing:
            task.speed = self._speed[id(task.work)]

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


def _meeting(works: Sequence[Work]) -> list[list[Work]]:
    """Works of one moment, those together that an edge or a chain of edges joins."""
    groups: list[list[Work]] = []
    of_edge: dict[Edge, int] = {}
    for work in works:
        joined = sorted({of_edge[edge] for edge in work.wants if edge in of_edge})
        home = joined[0] if joined else len(groups)
        if not joined:
            groups.append([])
        groups[home].append(work)
        for edge in work.wants:
            of_edge[edge] = home
        for other in joined[1:]:
            groups[home] += groups[other]
            groups[other] = []
            of_edge.update({edge: home for edge, own in of_edge.items() if own == other})
    return [group for group in groups if group]


def _speeds(works: Sequence[Work]) -> list[float]:
    """Speeds of works that run at one time, found by going half-way until nothing changes."""
    speeds = [1.0] * len(works)
    users: dict[Edge, list[tuple[int, float]]] = {}
    for idx, work in enumerate(works):
        for edge, want in work.wants.items():
            users.setdefault(edge, []).append((idx, want))
    shared = {edge: own for edge, own in users.items() if len(own) > 1}
    least = {edge: 1.0 / len(own) for edge, own in shared.items()}
    wanted = [
        [(edge, want) for edge, want in work.wants.items() if edge in shared] for work in works
    ]
    for _ in range(_MOST_ROUNDS if shared else 0):
        free = {
            edge: 1.0 - sum(want * speeds[idx] for idx, want in own) for edge, own in shared.items()
        }
        before = speeds
        speeds = []
        for work, own, speed in zip(works, wanted, before, strict=True):
            left = {edge: max(free[edge] + want * speed, least[edge]) for edge, want in own}
            speeds.append((speed + work.seconds / work.seconds_with(left)) / 2.0)
        if max(abs(a - b) for a, b in zip(speeds, before, strict=True)) <= _SETTLED:
            break
    return speeds

"""Discrete events: ranks play their lists, meet each other and share the links.

The rules of meeting are those of the matcher (docs/programs.md): what one rank posts on one channel
becomes active in order, a transfer moves while both ends are active, a collective when all members
have come. Bytes move as `SharedLinks` says; a latency later both ends know.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hexisolve.program.link_sharing import Job, Load, SharedLinks
from hexisolve.program.played import (
    Aside,
    Await,
    Join,
    LayerCall,
    Meet,
    Played,
    Post,
    Run,
    Send,
    Span,
)

_NEVER = float("inf")


class StuckError(RuntimeError):
    """Some ranks wait for ever; the matcher says why."""


@dataclass(slots=True, eq=False)
class _Handle:
    """What a rank may wait for: a START, a collective, everything posted aside."""

    open_parts: int = 0
    moving_since_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Group:
    """What a rank posted at once on one channel: transfers, or a collective's `loads`."""

    rank: int
    channel: str
    sends: tuple[Send, ...]
    meet: Meet | None
    open_parts: int
    handle: _Handle
    loads: tuple[Load, ...] = ()


@dataclass(slots=True, eq=False)
class _Rank:
    """Where a rank stands in its list."""

    played: Sequence[Played]
    now_s: float
    position: int = 0
    blocked_on: _Handle | None = None
    blocked_since_s: float = 0.0
    aside: _Handle = field(default_factory=_Handle)
    handles: dict[str, _Handle] = field(default_factory=dict)
    end_s: float | None = None
    spans: list[Span] = field(default_factory=list)


class LayerPlayer(Protocol):
    """Plays layers for all ranks of a stage at once."""

    next_change_s: float
    """When the links' use by layers changes next."""

    def play(self, call: LayerCall, entered_s: Mapping[int, float]) -> Mapping[int, float]:
        """When every rank leaves the layer, from when it entered."""

    def change(self, now_s: float) -> None:
        """Tell the links what layers use from now on."""


class Player:
    """One play of some ranks.

    Parameters
    ----------
    lists
        What every rank does.
    links
        The links they share.
    start_s
        When each rank begins; 0 by default.
    layers
        Answers layer calls; needed when the lists hold any.
    """

    def __init__(
        self,
        lists: Mapping[int, Sequence[Played]],
        links: SharedLinks,
        start_s: Mapping[int, float] | None = None,
        layers: LayerPlayer | None = None,
    ) -> None:
        begin = start_s or {}
        self._ranks = {rank: _Rank(own, begin.get(rank, 0.0)) for rank, own in lists.items()}
        self._links = links
        self._layers = layers
        self._queues: dict[tuple[int, str], deque[_Group]] = defaultdict(deque)
        self._ends: dict[tuple[tuple[str, int, int], bool], deque[_Group]] = defaultdict(deque)
        self._come: dict[str, list[_Group]] = defaultdict(list)
        self._calls: dict[int, dict[int, float]] = defaultdict(dict)
        self._events: list[tuple[float, int, int | tuple[_Group, ...]]] = []
        self._num_events = 0
        self._now_s = 0.0

    def play(self) -> dict[int, float]:
        """Run to the end; when every rank ended.

        Raises
        ------
        StuckError
            When ranks wait for ever.
        """
        for rank, state in self._ranks.items():
            self._at(state.now_s, rank)
        while self._events or self._links.next_end_s() is not None:
            if self._events and self._events[0][0] <= self._now_s:
                self._event()
                continue
            end_s = self._links.next_end_s()
            next_s = min(
                self._events[0][0] if self._events else _NEVER, _NEVER if end_s is None else end_s
            )
            if self._layers is not None and next_s >= self._layers.next_change_s:
                self._now_s = max(self._now_s, self._layers.next_change_s)
                self._layers.change(self._now_s)
            elif next_s == end_s:
                self._now_s = max(self._now_s, end_s)
                for job in self._links.pop():
                    self._moved(job)
            else:
                self._event()
        stuck = [rank for rank, state in self._ranks.items() if state.end_s is None]
        if stuck:
            raise StuckError(f"ranks {stuck[:8]} of {len(stuck)} wait for ever")
        return {rank: state.end_s or 0.0 for rank, state in self._ranks.items()}

    def spans(self) -> dict[int, list[Span]]:
        """What every rank did, in order."""
        return {rank: state.spans for rank, state in self._ranks.items()}

    def _event(self) -> None:
        """Let the next event happen."""
        time_s, _, what = heapq.heappop(self._events)
        self._now_s = max(self._now_s, time_s)
        if isinstance(what, int):
            self._go_on(what, time_s)
        else:
            self._arrived(what)

    def _moved(self, job: Job) -> None:
        """The bytes of a job are through: its channel is free, a latency later its ends know."""
        groups = job.tag
        assert isinstance(groups, tuple)
        for group in groups:
            group.open_parts -= 1
            if not group.open_parts:
                queue = self._queues[group.rank, group.channel]
                queue.popleft()
                if queue:
                    self._activate(queue[0])
        if job.load.latency_s:
            self._at(self._now_s + job.load.latency_s, groups)
        else:
            self._arrived(groups)

    def _at(self, time_s: float, what: int | tuple[_Group, ...]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (time_s, self._num_events, what))

    def _go_on(self, number: int, time_s: float) -> None:
        """Let a rank play until it computes, waits or ends."""
        rank = self._ranks[number]
        rank.now_s = time_s
        while rank.position < len(rank.played):
            item = rank.played[rank.position]
            rank.position += 1
            if isinstance(item, Run):
                rank.spans.append(Span(time_s, time_s + item.seconds, item.kind, item.chunk))
                self._at(time_s + item.seconds, number)
                return
            if isinstance(item, LayerCall):
                self._call(item, number, time_s)
                return
            handle = self._communicate(rank, number, item)
            if handle is not None and handle.open_parts:
                rank.blocked_on, rank.blocked_since_s = handle, time_s
                return
        rank.end_s = time_s

    def _communicate(
        self, rank: _Rank, number: int, item: Post | Await | Meet | Aside | Join
    ) -> _Handle | None:
        """Post what there is to post; the handle to wait for, if any."""
        if isinstance(item, Post):
            handle = rank.handles[item.handle] = _Handle(sum(len(s) for _, s in item.groups))
            for channel, sends in item.groups:
                self._post(_Group(number, channel, sends, None, len(sends), handle))
            return None
        if isinstance(item, Await):
            return rank.handles.pop(item.handle)
        if isinstance(item, Meet):
            handle = _Handle(1)
            self._post(_Group(number, item.channel, (), item, 1, handle, (item.load,)))
            return handle
        if isinstance(item, Aside):
            for meet in item.meetings:
                loads = meet.hops or (meet.load,)
                rank.aside.open_parts += len(loads)
                self._post(_Group(number, meet.channel, (), meet, len(loads), rank.aside, loads))
            return None
        return rank.aside

    def _call(self, call: LayerCall, number: int, time_s: float) -> None:
        """A rank reached a layer; the last of its stage plays it for all."""
        assert self._layers is not None
        entered = self._calls[call.stage]
        entered[number] = time_s
        if len(entered) == call.num_ranks:
            del self._calls[call.stage]
            for rank, end_s in self._layers.play(call, entered).items():
                self._at(end_s, rank)

    def _post(self, group: _Group) -> None:
        queue = self._queues[group.rank, group.channel]
        queue.append(group)
        if len(queue) == 1:
            self._activate(group)

    def _activate(self, group: _Group) -> None:
        """The oldest open group of its rank on its channel: its parts may meet."""
        if group.meet is not None:
            come = self._come[group.channel]
            come.append(group)
            if len(come) == group.meet.num_members:
                del self._come[group.channel]
                for load in group.loads:
                    self._move(load, tuple(come))
            return
        for send in group.sends:
            waiting = self._ends[send.key, not send.is_send]
            if waiting:
                self._move(send.load, (waiting.popleft(), group))
            else:
                self._ends[send.key, send.is_send].append(group)

    def _move(self, load: Load, groups: tuple[_Group, ...]) -> None:
        """All ends are there: bytes begin to move."""
        for group in groups:
            group.handle.moving_since_s = self._now_s
        self._links.add(load, self._now_s, groups)

    def _arrived(self, groups: tuple[_Group, ...]) -> None:
        """A transfer or a collective is complete at all its ends."""
        for group in groups:
            handle = group.handle
            handle.open_parts -= 1
            rank = self._ranks[group.rank]
            if rank.blocked_on is handle and not handle.open_parts:
                rank.blocked_on = None
                self._waited(rank, handle)
                self._at(self._now_s, group.rank)

    def _waited(self, rank: _Rank, handle: _Handle) -> None:
        """Split a wait into waiting for the others and waiting for the bytes."""
        since_s, now_s = rank.blocked_since_s, self._now_s
        moving_s = min(max(handle.moving_since_s, since_s), now_s)
        if moving_s > since_s:
            rank.spans.append(Span(since_s, moving_s, "wait"))
        if now_s > moving_s:
            rank.spans.append(Span(moving_s, now_s, "exchange"))

"""Layers played once per link situation and repeated.

A layer of a stage takes the same time whenever its ranks enter it at the same offsets to each other
and the links are as busy with other things. So a layer is played when its (list, offsets, link
situation) is new, and remembered. Offsets settle after a layer or two, because rings and exchanges
tie the ranks of a stage together; the link situation is what other stages and boundary transfers
take of the edges that the layer uses, in sixteenths of their capacity (docs/clock.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from hexisolve.program.link_sharing import Links, Load, SharedLinks
from hexisolve.program.lowering import Lowering
from hexisolve.program.played import Aside, LayerCall, LayerKey, Meet, Post, Span
from hexisolve.program.player import Player
from hexisolve.program.rank_program import Phase

MAX_PLAYS = 16
"""Plays of one layer list; later ones take the nearest situation that was played."""
_OFFSET_STEPS = 500
_STEPS = 16


class Situation(NamedTuple):
    """What else uses the edges of a layer.

    Parameters
    ----------
    taken
        (edge, sixteenths of its capacity) that layers of other stages use.
    waiting
        (edge, sixteenths of the layer's time, flows): boundary transfers on their way when the
        layer begins, in the time they need of the whole edge.
    """

    taken: tuple[tuple[int, int], ...] = ()
    waiting: tuple[tuple[int, int, float], ...] = ()


PlayKey: TypeAlias = tuple[tuple[int, ...], Situation]
"""(offsets in steps, situation)."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerPlay:
    """One layer played by all ranks of a stage.

    Times are relative to the first rank's entry.

    Parameters
    ----------
    entry_s, exit_s
        When each rank enters and leaves.
    spans
        What each rank does in between.
    situation
        What others took of the links.
    """

    entry_s: dict[int, float]
    exit_s: dict[int, float]
    spans: dict[int, list[Span]]
    situation: Situation

    @property
    def seconds(self) -> float:
        """From the first entry to the last exit."""
        return max(self.exit_s.values())


@dataclass(frozen=True, slots=True)
class LayerRun:
    """A place in the step where a layer ran: `play`, shifted by `start_s`."""

    stage: int
    chunk: int
    layer: int
    phase: Phase
    start_s: float
    play: LayerPlay

    @property
    def end_s(self) -> float:
        """When the last rank left it."""
        return self.start_s + self.play.seconds


@dataclass
class LayerPlays:
    """Plays layers on demand, and knows which run at the moment.

    Parameters
    ----------
    lowering
        Where the lists of a layer come from.
    links
        Capacities.
    shared
        The links on which boundary transfers move.
    """

    lowering: Lowering
    links: Links
    shared: SharedLinks
    runs: list[LayerRun] = field(default_factory=list)
    num_plays: int = 0
    next_change_s: float = float("inf")
    _known: dict[tuple[int, LayerKey], dict[PlayKey, LayerPlay]] = field(default_factory=dict)
    _bytes: dict[tuple[int, LayerKey], dict[int, float]] = field(default_factory=dict)
    _active: dict[int, tuple[float, dict[int, float]]] = field(default_factory=dict)
    """Stage -> (end of its running layer, edge -> bytes/s)."""

    def play(self, call: LayerCall, entered_s: Mapping[int, float]) -> Mapping[int, float]:
        """When every rank leaves the layer, from when it entered."""
        first_s, last_s = min(entered_s.values()), max(entered_s.values())
        offsets = {rank: time_s - first_s for rank, time_s in entered_s.items()}
        edge_bytes = self._edge_bytes(call)
        known = self._known.setdefault((call.stage, call.key), {})
        if not known:
            self._remember(known, self._play(call, offsets, Situation(), 0.0))
        alone_s = next(iter(known.values())).seconds
        situation = self._situation(call, edge_bytes, alone_s, last_s)
        play = self._find(call, known, offsets, situation)
        shifts = [entered_s[rank] - entry_s for rank, entry_s in play.entry_s.items()]
        run = LayerRun(
            call.stage, call.chunk, call.layer, call.phase, sum(shifts) / len(shifts), play
        )
        self.runs.append(run)
        rates = {edge: num_bytes / play.seconds for edge, num_bytes in edge_bytes.items()}
        self._active[call.stage] = run.end_s, rates
        self.change(last_s)
        return {rank: run.start_s + exit_s for rank, exit_s in play.exit_s.items()}

    def change(self, now_s: float) -> None:
        """Tell the links what layers use from now on."""
        self._active = {s: entry for s, entry in self._active.items() if entry[0] > now_s}
        self.next_change_s = min(
            (end_s for end_s, _ in self._active.values()), default=float("inf")
        )
        taken: dict[int, float] = {}
        for _, rates in self._active.values():
            for edge, rate in rates.items():
                taken[edge] = taken.get(edge, 0.0) + rate
        self.shared.set_taken(taken, now_s)

    def _find(
        self,
        call: LayerCall,
        known: dict[PlayKey, LayerPlay],
        offsets: dict[int, float],
        situation: Situation,
    ) -> LayerPlay:
        """The play of these offsets in this situation, or the nearest when there are many."""
        alone_s = next(iter(known.values())).seconds
        play = known.get((_steps(offsets, alone_s), situation))
        if play is None and len(known) >= MAX_PLAYS:
            return min(
                known.values(), key=lambda play: _distance(play, offsets, situation, alone_s)
            )
        return play or self._remember(known, self._play(call, offsets, situation, alone_s))

    @staticmethod
    def _remember(known: dict[PlayKey, LayerPlay], play: LayerPlay) -> LayerPlay:
        alone_s = next(iter(known.values())).seconds if known else play.seconds
        known[_steps(play.entry_s, alone_s), play.situation] = play
        return play

    def _play(
        self, call: LayerCall, offsets: dict[int, float], situation: Situation, alone_s: float
    ) -> LayerPlay:
        self.num_plays += 1
        capacity = self.links.bytes_per_s
        shared = SharedLinks(
            capacity, {edge: share / _STEPS * capacity[edge] for edge, share in situation.taken}
        )
        for edge, share, flows in situation.waiting:
            num_bytes = share / _STEPS * alone_s * capacity[edge]
            shared.add(Load((edge,), (num_bytes,), (flows,), 0.0), 0.0, ())
        player = Player(self.lowering.layer_lists(call.key, call.stage), shared, offsets)
        exits = player.play()
        return LayerPlay(offsets, exits, player.spans(), situation)

    def _edge_bytes(self, call: LayerCall) -> dict[int, float]:
        """Bytes that the layer puts on every edge."""
        known = self._bytes.get((call.stage, call.key))
        if known is None:
            known = {}
            for load, share in _loads(self.lowering, call):
                for edge, num_bytes in zip(load.edges, load.edge_bytes, strict=True):
                    known[edge] = known.get(edge, 0.0) + num_bytes * share
            self._bytes[call.stage, call.key] = known
        return known

    def _situation(
        self, call: LayerCall, used: Mapping[int, float], seconds: float, now_s: float
    ) -> Situation:
        """What else uses the edges of a layer that takes about `seconds`."""
        capacity = self.links.bytes_per_s
        shares: dict[int, float] = {}
        for stage, (end_s, rates) in self._active.items():
            if stage != call.stage and end_s > now_s:
                for edge in rates.keys() & used.keys():
                    shares[edge] = shares.get(edge, 0.0) + rates[edge] / capacity[edge]
        taken = ((edge, min(round(_STEPS * s), _STEPS)) for edge, s in shares.items())
        waiting = (
            (edge, min(round(_STEPS * num_bytes / capacity[edge] / seconds), _STEPS), flows)
            for edge, (num_bytes, flows) in self.shared.waiting(now_s).items()
            if edge in used
        )
        return Situation(
            tuple(sorted(entry for entry in taken if entry[1])),
            tuple(sorted(entry for entry in waiting if entry[1])),
        )


def _loads(lowering: Lowering, call: LayerCall) -> list[tuple[Load, float]]:
    """(load, share) of everything a layer moves; a collective counts once over its members."""
    found = []
    for own in lowering.layer_lists(call.key, call.stage).values():
        for item in own:
            if isinstance(item, Meet):
                found.append((item.load, 1.0 / item.num_members))
            elif isinstance(item, Aside):
                found += [(meet.load, 1.0 / meet.num_members) for meet in item.meetings]
            elif isinstance(item, Post):
                found += [
                    (send.load, 1.0) for _, sends in item.groups for send in sends if send.is_send
                ]
    return found


def _steps(offsets: Mapping[int, float], alone_s: float) -> tuple[int, ...]:
    """Offsets in steps of 1 / 500 of the layer's time."""
    if alone_s <= 0:
        return ()
    return tuple(round(_OFFSET_STEPS * offset / alone_s) for offset in offsets.values())


def _distance(
    play: LayerPlay, offsets: Mapping[int, float], situation: Situation, alone_s: float
) -> float:
    """How unlike a play is: shares of edges, and mean offsets in layer times."""
    edges = 0.0
    for ours, theirs in zip(situation, play.situation, strict=True):
        here = {entry[0]: entry[1] for entry in ours}
        there = {entry[0]: entry[1] for entry in theirs}
        edges += sum(abs(here.get(e, 0) - there.get(e, 0)) for e in here.keys() | there.keys())
    apart_s = sum(abs(play.entry_s[rank] - offset) for rank, offset in offsets.items())
    return edges / _STEPS + apart_s / len(offsets) / max(alone_s, 1e-30)

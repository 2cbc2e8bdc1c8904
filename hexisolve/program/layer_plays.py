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

from hexisolve.program.link_sharing import Links, Load, SharedLinks
from hexisolve.program.lowering import Lowering
from hexisolve.program.played import Aside, LayerCall, LayerKey, Meet, Phase, Post, Span
from hexisolve.program.player import Player

MAX_PLAYS = 16
"""Plays of one layer list; later ones take the nearest situation that was played."""
_OFFSET_STEPS = 500
_SHARE_STEPS = 16

Situation = tuple[tuple[int, int], ...]
"""(edge, sixteenths of its capacity taken by others)."""


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
    _known: dict[tuple[int, LayerKey], dict[object, LayerPlay]] = field(default_factory=dict)
    _bytes: dict[tuple[int, LayerKey], dict[int, float]] = field(default_factory=dict)
    _active: dict[int, tuple[float, dict[int, float]]] = field(default_factory=dict)
    """Stage -> (end of its running layer, edge -> bytes/s)."""

    def play(self, call: LayerCall, entered_s: Mapping[int, float]) -> Mapping[int, float]:
        """When every rank leaves the layer, from when it entered."""
        first_s, last_s = min(entered_s.values()), max(entered_s.values())
        offsets = {rank: time_s - first_s for rank, time_s in entered_s.items()}
        edge_bytes = self._edge_bytes(call)
        situation = self._situation(call.stage, edge_bytes, last_s)
        play = self._find(call, offsets, situation)
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

    def _find(self, call: LayerCall, offsets: dict[int, float], situation: Situation) -> LayerPlay:
        known = self._known.setdefault((call.stage, call.key), {})
        scale = next(iter(known.values())).seconds / _OFFSET_STEPS if known else 0.0
        if known and scale > 0:
            steps = tuple(round(offset / scale) for offset in offsets.values())
            play = known.get((steps, situation))
            if play is not None:
                return play
            if len(known) >= MAX_PLAYS:
                return min(
                    known.values(), key=lambda play: _distance(play, offsets, situation, scale)
                )
        play = self._play(call, offsets, situation)
        scale = scale or play.seconds / _OFFSET_STEPS
        steps = tuple(round(offset / scale) for offset in offsets.values()) if scale else ()
        known[steps, situation] = play
        return play

    def _play(self, call: LayerCall, offsets: dict[int, float], situation: Situation) -> LayerPlay:
        self.num_plays += 1
        capacity = self.links.bytes_per_s
        taken = {edge: share / _SHARE_STEPS * capacity[edge] for edge, share in situation}
        player = Player(
            self.lowering.layer_lists(call.key, call.stage),
            SharedLinks(capacity, taken),
            offsets,
        )
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

    def _situation(self, stage: int, used: Mapping[int, float], now_s: float) -> Situation:
        """What others take now of the edges that a layer uses."""
        taken: dict[int, float] = {}
        others = [
            rates for s, (end_s, rates) in self._active.items() if s != stage and end_s > now_s
        ]
        others.append(self.shared.used_bytes_per_s())
        for rates in others:
            for edge, rate in rates.items():
                if edge in used:
                    taken[edge] = taken.get(edge, 0.0) + rate
        shares = {
            edge: min(round(_SHARE_STEPS * rate / self.links.bytes_per_s[edge]), _SHARE_STEPS)
            for edge, rate in taken.items()
        }
        return tuple(sorted((edge, share) for edge, share in shares.items() if share))


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


def _distance(
    play: LayerPlay, offsets: Mapping[int, float], situation: Situation, scale: float
) -> float:
    """How unlike a play is: sixteenths of edges, and offsets in steps averaged over the ranks."""
    ours, theirs = dict(situation), dict(play.situation)
    edges = sum(abs(ours.get(e, 0) - theirs.get(e, 0)) for e in ours.keys() | theirs.keys())
    apart = sum(abs(play.entry_s[rank] - offset) for rank, offset in offsets.items())
    return edges / _SHARE_STEPS * _OFFSET_STEPS + apart / len(offsets) / scale

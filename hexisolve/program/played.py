"""What the clock plays: instructions reduced to seconds, loads and meetings.

`durations` says how long an instruction takes and `lowering` turns programs into these lists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from hexisolve.program.link_sharing import Load
from hexisolve.program.rank_program import Phase

WorkKind: TypeAlias = Literal[
    "pre", "attention", "post", "loss", "loss_backward", "optimizer", "launch"
]
SpanKind: TypeAlias = Literal[
    "pre", "attention", "post", "loss", "loss_backward", "optimizer", "launch", "exchange", "wait"
]
"""``exchange``: waiting for bytes on their way; ``wait``: for another rank."""


@dataclass(frozen=True, slots=True)
class Run:
    """The device computes for `seconds` (`chunk`: for which one, outside of layers)."""

    seconds: float
    kind: WorkKind
    chunk: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    """One end of a transfer; both ends carry the same `load`.

    Parameters
    ----------
    key
        (channel, sender, receiver): the k-th send meets the k-th receive of the same key.
    """

    key: tuple[str, int, int]
    is_send: bool
    load: Load


@dataclass(frozen=True, slots=True, eq=False)
class Post:
    """START: post transfers, channel by channel, and go on."""

    handle: str
    groups: tuple[tuple[str, tuple[Send, ...]], ...]


@dataclass(frozen=True, slots=True)
class Await:
    """WAIT for a handle."""

    handle: str


@dataclass(frozen=True, slots=True, eq=False)
class Meet:
    """A collective of `num_members` ranks; everyone goes on when it has ended.

    Parameters
    ----------
    load
        All its flows: they move together.
    hops
        Each flow on its own: how a collective around a ring moves when it is posted aside.
    """

    channel: str
    num_members: int
    load: Load
    hops: tuple[Load, ...] = ()

    def yielding(self) -> Meet:
        """The same collective with flows that give way to what ranks wait for."""
        hops = tuple(hop.yielding() for hop in self.hops)
        return replace(self, load=self.load.yielding(), hops=hops)


@dataclass(frozen=True, slots=True, eq=False)
class Aside:
    """Post collectives and go on: gathers of the next layer's weights, sums of the last one's."""

    meetings: tuple[Meet, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """Wait for everything posted aside."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """All ranks of a stage run one layer; the list of every rank comes from the layer's key.

    Parameters
    ----------
    stage
        Number of the stage, counted over all replicas.
    key
        Equal keys take equal time in equal situations.
    num_ranks
        Ranks of the stage.
    """

    stage: int
    key: LayerKey
    num_ranks: int
    chunk: int
    layer: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class LayerKey:
    """What a layer's play depends on.

    Parameters
    ----------
    template
        Name of the template.
    layer_kind
        Number of the layer's kind (layers of one template may differ in their MLP).
    beside
        Numbers of the loads that run beside it.
    """

    template: str
    layer_kind: int
    beside: tuple[int, ...] = ()


Played: TypeAlias = Run | Post | Await | Meet | Aside | Join | LayerCall


@dataclass(frozen=True, slots=True)
class Span:
    """One rank did one thing.

    `chunk` and `layer` are -1 outside of chunks and layers.
    """

    start_s: float
    end_s: float
    kind: SpanKind
    chunk: int = -1
    layer: int = -1

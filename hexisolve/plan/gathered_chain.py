"""F and B of a ZeRO-3 stage: a block runs while others are gathered and scattered (equation 9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hexisolve.cost.collectives import (
    gather_bytes,
    reduce_scatter_bytes,
    ring_traffic,
    shares_of,
)
from hexisolve.cost.layer_time import chain_s
from hexisolve.data.cluster import Edge
from hexisolve.plan.plan import Stage
from hexisolve.plan.price_book import NO_EXCHANGE, Exchange, PriceBook, add_edges


class Pass(NamedTuple):
    """A block in one direction.

    Parameters
    ----------
    key
        Tells passes of one stage apart that move different things.
    seconds
        What it takes when nothing moves beside it.
    exchanges
        What it moves itself.
    """

    key: tuple[object, ...]
    seconds: float
    exchanges: tuple[Exchange, ...] = ()


class ChainBlock(NamedTuple):
    """Parameters that are gathered and reduced together, and the work that needs them.

    Parameters
    ----------
    forward, backward
        Its passes.
    gathered, gathered_again
        Parameters to gather for either pass.
    reduced
        Parameters whose gradients are reduced after its backward.
    """

    forward: Pass
    backward: Pass
    gathered: int
    gathered_again: int
    reduced: int


def chained_s(
    book: PriceBook,
    stage: Stage,
    blocks: Sequence[ChainBlock],
    forward_edges: dict[Edge, float],
    backward_edges: dict[Edge, float],
) -> tuple[float, float]:
    """F and B seconds of a stage's blocks, given in the order of forward.

    Each block is gathered while the one before it runs, and gradients of the block before are
    scattered in the same time. Adds the bytes of gathers and reduce-scatters to those of the edges.
    """
    gathers = _collectives(book, stage, [block.gathered for block in blocks], "gather")
    again = _collectives(book, stage, [block.gathered_again for block in blocks], "gather")
    scatters = nothing = [NO_EXCHANGE] * len(blocks)
    if stage.zero3_gradients == "chunk":
        reduced = [block.reduced for block in blocks]
        scatters = _collectives(book, stage, reduced, "reduce_scatter")
    _add_all(forward_edges, gathers)
    _add_all(backward_edges, [*again, *scatters])
    forward, backward = [b.forward for b in blocks], [b.backward for b in reversed(blocks)]
    return (
        _pass_s(book, stage, forward, gathers, nothing),
        _pass_s(book, stage, backward, again[::-1], scatters[::-1]),
    )


def _collectives(
    book: PriceBook, stage: Stage, parameters: Sequence[int], kind: str
) -> list[Exchange]:
    """`collective` of every block; equal blocks ask once."""
    known = {number: collective(book, stage, number, kind) for number in set(parameters)}
    return [known[number] for number in parameters]


def _add_all(total: dict[Edge, float], exchanges: Sequence[Exchange]) -> None:
    """Add the bytes of exchanges, equal ones in one go."""
    counts = Counter(map(id, exchanges))
    for exchange in {id(exchange): exchange for exchange in exchanges}.values():
        add_edges(total, exchange, counts[id(exchange)])


def _pass_s(
    book: PriceBook,
    stage: Stage,
    passes: Sequence[Pass],
    gathers: Sequence[Exchange],
    scatters: Sequence[Exchange],
) -> float:
    """Seconds of passes in the order of execution."""
    beside = list(zip([*gathers[1:], NO_EXCHANGE], [NO_EXCHANGE, *scatters[:-1]], strict=True))
    keys = [
        (own.key, id(fetched), id(stored))
        for own, (fetched, stored) in zip(passes, beside, strict=True)
    ]
    distinct = dict(zip(keys, zip(passes, beside, strict=True), strict=True))
    shared = {key: _shared_s(book, stage, *both) for key, both in distinct.items()}
    return chain_s(
        [own.seconds for own in passes],
        [gather.seconds for gather in gathers],
        [scatter.seconds for scatter in scatters],
        [shared[key] for key in keys],
    )


def _shared_s(book: PriceBook, stage: Stage, own: Pass, beside: tuple[Exchange, Exchange]) -> float:
    """Seconds of what moves beside a pass when the links carry the pass's own exchanges too.

    A hop of the ring of ranks moves at the pace of the slowest edge on its path, and the pass's
    exchanges follow one another: ``max over hops (sum over what moves (max over edges (s)))``.
    0 where the pass is long enough for everything, one after the other, on any path.
    """
    if not own.exchanges or beside == (NO_EXCHANGE, NO_EXCHANGE):
        return 0.0
    moving = (*own.exchanges, *beside)
    if sum(exchange.seconds for exchange in moving) <= own.seconds:
        return 0.0
    key = ("shared", book.stage_key(stage), own.key, *(exchange.seconds for exchange in beside))
    known: float | None = book.entries.get(key)
    if known is None:
        paths = _hop_paths(book, stage)
        hops_s = [0.0] * len(paths)
        for exchange in moving:
            seconds = book.edge_seconds(exchange.edges)
            for idx, path in enumerate(paths):
                hops_s[idx] += max(seconds.get(edge, 0.0) for edge in path)
        known = book.entries[key] = max(hops_s)
    return known


def _hop_paths(book: PriceBook, stage: Stage) -> list[tuple[Edge, ...]]:
    """Edges from every rank of a stage to the next one, around the ring of collectives."""
    key = ("hops", book.stage_key(stage))
    known: list[tuple[Edge, ...]] | None = book.entries.get(key)
    if known is None:
        devices = [rank.device for rank in stage.ranks]
        pairs = zip([devices[-1], *devices], devices, strict=False)
        known = book.entries[key] = [book.route(*pair).edges for pair in pairs]
    return known


def collective(book: PriceBook, stage: Stage, parameters: int, kind: str) -> Exchange:
    """Price a ``gather`` or ``reduce_scatter`` of parameters over the stage's ranks."""
    if not parameters:
        return NO_EXCHANGE
    key = ("collective", kind, book.stage_key(stage), parameters)
    known: Exchange | None = book.entries.get(key)
    if known is None:
        shares = shares_of([rank.state_share for rank in stage.ranks])
        if kind == "gather":
            received = [gather_bytes(share, parameters, book.e) for share in shares]
        else:
            gradient = book.instance.cost.gradient_bytes
            received = [reduce_scatter_bytes(share, parameters, gradient) for share in shares]
        devices = [rank.device for rank in stage.ranks]
        known = book.entries[key] = book.exchange(ring_traffic(devices, received))
    return known

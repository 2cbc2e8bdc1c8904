"""Stages and replicas that share edges, and what waiting for those edges costs (equation 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from hexisolve.cost.layer_time import layer_s
from hexisolve.cost.pipeline import PipelineTimes, Schedule
from hexisolve.cost.shared_edges import SharedPipeline, Wants, Work, shared_times_s
from hexisolve.data.cluster import Edge
from hexisolve.plan.layer_price import LayerPass
from hexisolve.plan.price_book import EdgeBytes, Exchange, PriceBook
from hexisolve.plan.stage_price import StagePrice

_NOTHING = 1e-9


@dataclass(frozen=True, eq=False)
class PricedReplica:
    """Operations of one replica with their prices.

    Parameters
    ----------
    schedule
        Per stage, ``("F" | "B", chunk)`` in order.
    prices, forward_s, backward_s
        ``[stage][chunk]``.
    transfers_forward, transfers_backward
        ``[p][chunk]``.
    times
        The longest path, every operation at its own pace.
    """

    schedule: Schedule
    prices: Sequence[Sequence[StagePrice]]
    forward_s: Sequence[Sequence[float]]
    backward_s: Sequence[Sequence[float]]
    transfers_forward: Sequence[Sequence[Exchange]]
    transfers_backward: Sequence[Sequence[Exchange]]
    times: PipelineTimes


def times_with_waits(
    book: PriceBook, replicas: Sequence[PricedReplica]
) -> tuple[PipelineTimes, ...]:
    """Times of all operations when they wait for edges that several stages use.

    Edges that operations of two stages or more use (of any replica) are shared by everything that
    runs at one time, boundary transfers too; other edges are as wide as they are.
    """
    alone = tuple(replica.times for replica in replicas)
    edges = _edges_of_several_stages(replicas)
    if not edges:
        return alone
    edges = _slowest_of_equal(book, edges, replicas)
    shared = shared_times_s([_shared(book, replica, edges) for replica in replicas])
    return tuple(
        # Rounding apart, waiting never makes a pipeline shorter.
        waiting if waiting.makespan_s > times.makespan_s else times
        for waiting, times in zip(shared, alone, strict=True)
    )


def _edges_of_several_stages(replicas: Sequence[PricedReplica]) -> set[Edge]:
    seen: set[Edge] = set()
    several: set[Edge] = set()
    for replica in replicas:
        for row in replica.prices:
            own: set[Edge] = set()
            for price in {id(price): price for price in row}.values():
                own.update(price.edges)
            several |= seen & own
            seen |= own
    return several


def _slowest_of_equal(
    book: PriceBook, edges: Set[Edge], replicas: Sequence[PricedReplica]
) -> set[Edge]:
    """Of edges that carry the same bytes whatever runs, the slowest: only that one can be full."""
    carried: dict[Edge, list[tuple[int, float]]] = {edge: [] for edge in sorted(edges)}
    for number, moved in enumerate(_moved(replicas)):
        for edge in moved.keys() & carried.keys():
            carried[edge].append((number, moved[edge]))
    second = book.edge_seconds(dict.fromkeys(carried, 1.0))
    slowest: dict[tuple[tuple[int, float], ...], Edge] = {}
    for edge, own in carried.items():
        known = slowest.setdefault(tuple(own), edge)
        if second[edge] > second[known]:
            slowest[tuple(own)] = edge
    return set(slowest.values())


def _moved(replicas: Sequence[PricedReplica]) -> list[EdgeBytes]:
    """Bytes on edges of everything that moves at one time, and of whole operations."""
    found: dict[int, EdgeBytes] = {}
    for replica in replicas:
        for price in {id(price): price for row in replica.prices for price in row}.values():
            moves = [
                exchange.edges
                for _, layer_pass in (*price.forward_passes, *price.backward_passes)
                for exchange in layer_pass.moves
            ]
            for moved in (price.forward_edges, price.backward_edges, *moves):
                found[id(moved)] = moved
        for row in (*replica.transfers_forward, *replica.transfers_backward):
            found.update((id(exchange.edges), exchange.edges) for exchange in row)
    return list(found.values())


def _shared(book: PriceBook, replica: PricedReplica, edges: Set[Edge]) -> SharedPipeline:
    """The operations of a replica, equal ones as one object."""
    works: dict[tuple[int, str, float], Work] = {}

    def operation(price: StagePrice, kind: str, seconds: float) -> Work:
        key = id(price), kind, seconds
        if key not in works:
            works[key] = _operation(book, price, kind, seconds, edges)
        return works[key]

    def transfer(exchange: Exchange) -> Work:
        key = id(exchange), "X", exchange.seconds
        if key not in works:
            works[key] = _transfer(book, exchange, edges)
        return works[key]

    return SharedPipeline(
        replica.schedule,
        [
            [operation(price, "F", own_s) for price, own_s in zip(*row, strict=True)]
            for row in zip(replica.prices, replica.forward_s, strict=True)
        ],
        [
            [operation(price, "B", own_s) for price, own_s in zip(*row, strict=True)]
            for row in zip(replica.prices, replica.backward_s, strict=True)
        ],
        [[transfer(exchange) for exchange in row] for row in replica.transfers_forward],
        [[transfer(exchange) for exchange in row] for row in replica.transfers_backward],
    )


class _Slowed:
    """Exchanges one after the other that are left with a part of the shared edges."""

    def __init__(self, book: PriceBook, exchanges: Sequence[Exchange], edges: Set[Edge]) -> None:
        self.seconds = sum(exchange.seconds for exchange in exchanges)
        self._moving = [
            (book.busiest_s(exchange.edges), tuple(busy_s.items()))
            for exchange in exchanges
            if (busy_s := _busy_seconds(book, exchange.edges, edges))
        ]

    def seconds_with(self, left: Wants) -> float:
        """The flow rule on edges of which only a part is left."""
        seconds = self.seconds
        for busiest_s, moving in self._moving:
            slowest_s = busiest_s
            for edge, own_s in moving:
                if edge in left and own_s > slowest_s * left[edge]:
                    slowest_s = own_s / left[edge]
            seconds += slowest_s - busiest_s
        return seconds


def _transfer(book: PriceBook, exchange: Exchange, edges: Set[Edge]) -> Work:
    busy_s = _busy_seconds(book, exchange.edges, edges)
    slowed = _Slowed(book, [exchange], edges)
    return Work(exchange.seconds, _wants(busy_s, exchange.seconds), slowed.seconds_with)


def _operation(
    book: PriceBook, price: StagePrice, kind: str, seconds: float, edges: Set[Edge]
) -> Work:
    """F or B: equation 6 for every layer, on edges of which only a part is left.

    Exposed gathers take longer by what is left of the edges they use, and the whole operation is
    never shorter than an edge needs for all its bytes.
    """
    is_forward = kind == "F"
    moved = price.forward_edges if is_forward else price.backward_edges
    busy_s = _busy_seconds(book, moved, edges)
    own_s = price.forward_s if is_forward else price.backward_s
    gather_s = price.gather_forward_s if is_forward else price.gather_backward_s
    passes = price.forward_passes if is_forward else price.backward_passes
    layers = [_SlowedLayers(book, count, layer_pass, edges) for count, layer_pass in passes]
    gathered = _gathered_edges(moved, passes, busy_s) if gather_s > 0 else ()

    def seconds_with(left: Wants) -> float:
        slowed_s = own_s + sum(own.extra_s(left) for own in layers)
        if gathered:
            least = min((left[edge] for edge in gathered if edge in left), default=1.0)
            slowed_s += gather_s * (1.0 / least - 1.0)
        edge_s = max((busy_s[edge] / share for edge, share in left.items()), default=0.0)
        return max(seconds, slowed_s, edge_s)

    return Work(seconds, _wants(busy_s, seconds), seconds_with)


class _SlowedLayers:
    """Equal layers of an operation."""

    def __init__(
        self, book: PriceBook, count: int, layer_pass: LayerPass, edges: Set[Edge]
    ) -> None:
        self._count = count
        self._exchanges = _Slowed(book, layer_pass.exchanges, edges)
        self._rings = _Slowed(book, layer_pass.rings, edges)
        # Equation 6 needs no more of dense work and attention than these two sums.
        self._dense_s = [max(layer_pass.dense_s)]
        compute_s = max(map(sum, zip(layer_pass.dense_s, layer_pass.attention_s, strict=True)))
        self._hiding_s = [compute_s - self._dense_s[0]]
        self._alone_s = self._layer_s(self._exchanges.seconds, self._rings.seconds)

    def _layer_s(self, exchanges_s: float, rings_s: float) -> float:
        return layer_s(self._dense_s, exchanges_s, self._hiding_s, rings_s)

    def extra_s(self, left: Wants) -> float:
        """Seconds more than alone."""
        slowed_s = self._layer_s(self._exchanges.seconds_with(left), self._rings.seconds_with(left))
        return self._count * (slowed_s - self._alone_s)


def _gathered_edges(
    moved: EdgeBytes, passes: Sequence[tuple[int, LayerPass]], edges: Mapping[Edge, float]
) -> list[Edge]:
    """Edges that carry weights or their gradients: more than the layers' own exchanges."""
    found = []
    for edge in edges:
        own = sum(
            count * exchange.edges.get(edge, 0.0)
            for count, layer_pass in passes
            for exchange in layer_pass.moves
        )
        if moved[edge] - own > _NOTHING * moved[edge]:
            found.append(edge)
    return found


def _busy_seconds(book: PriceBook, moved: EdgeBytes, edges: Set[Edge]) -> dict[Edge, float]:
    """Seconds that those edges need for the bytes they carry."""
    return book.edge_seconds({edge: moved[edge] for edge in moved if edge in edges and moved[edge]})


def _wants(busy_s: Mapping[Edge, float], seconds: float) -> dict[Edge, float]:
    if seconds <= 0:
        return {}
    return {edge: min(own_s / seconds, 1.0) for edge, own_s in busy_s.items()}

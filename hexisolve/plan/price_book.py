"""Prices of one instance that were already worked out, kept as long as the book is in use.

Plans of a search share most stages, and stages share most layers, so every part is priced once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from hexisolve.cost.communication import flow_network
from hexisolve.data.cluster import Edge, Route
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import LayerSpec
from hexisolve.plan.plan import Stage

# (sender, receiver) -> bytes: one set of simultaneous flows between devices.
Traffic = Mapping[tuple[str, str], float]
EdgeBytes = Mapping[Edge, float]

_MAX_ENTRIES = 200_000
_MAX_SMALL = 1000


class Exchange(NamedTuple):
    """A flow set with its price: seconds, and bytes on every edge."""

    seconds: float
    edges: EdgeBytes


NO_EXCHANGE = Exchange(0.0, {})


def add_edges(total: dict[Edge, float], exchange: Exchange, times: float = 1.0) -> None:
    """Add the bytes of an exchange, `times` over, to `total`."""
    for edge, num_bytes in exchange.edges.items():
        total[edge] = total.get(edge, 0.0) + times * num_bytes


@dataclass
class PriceBook:
    """What `evaluate` remembers about one instance."""

    instance: Instance

    def __post_init__(self) -> None:
        self.e = self.instance.workload.element_bytes
        self.is_causal = self.instance.workload.attention == "causal"
        self.entries: dict[Any, Any] = {}
        self.routes: dict[tuple[str, str], Route] = {}
        self.edge_rates: dict[Edge, float] = {}
        self.stage_keys: dict[Stage, int] = {}
        self.num_stages_seen = 0
        kinds: dict[LayerSpec, int] = {}
        layers = self.instance.model.layers
        self.layer_kinds = tuple(kinds.setdefault(layer, len(kinds)) for layer in layers)
        self.kind_layers = tuple(kinds)

    def stage_key(self, stage: Stage) -> int:
        """A small number that stands for a stage in keys of `entries`."""
        key = self.stage_keys.get(stage)
        if key is None:
            if len(self.entries) > _MAX_ENTRIES:
                self.entries.clear()
                self.stage_keys.clear()
            key = self.stage_keys[stage] = self.num_stages_seen
            self.num_stages_seen += 1
        return key

    def exchange(self, traffic: Traffic) -> Exchange:
        """Price one set of simultaneous flows by the flow rule.

        Small sets are summed here; the rule is that of `hexisolve.cost.communication`.
        """
        if not traffic:
            return NO_EXCHANGE
        if len(traffic) > _MAX_SMALL:
            return self._large_exchange(traffic)
        edges: dict[Edge, float] = {}
        latency_s = 0.0
        for pair, num_bytes in traffic.items():
            if num_bytes <= 0 or pair[0] == pair[1]:
                continue
            route = self.routes.get(pair) or self.route(*pair)
            for edge in route.edges:
                edges[edge] = edges.get(edge, 0.0) + num_bytes
            if route.latency_s > latency_s:
                latency_s = route.latency_s
        return Exchange(self.busiest_s(edges) + latency_s, edges)

    def route(self, source: str, target: str) -> Route:
        """The route between two devices."""
        route = self.routes.get((source, target))
        if route is None:
            route = self.routes[source, target] = self.instance.cluster.route(source, target)
        return route

    def edge_seconds(self, edges: EdgeBytes) -> dict[Edge, float]:
        """Seconds that every edge needs for its bytes."""
        rates = self.edge_rates
        for edge in edges:
            if edge not in rates:
                nominal = self.instance.cluster.edge_bytes_per_s(edge)
                rates[edge] = nominal * self.instance.cost.link_efficiency
        return {edge: num_bytes / rates[edge] for edge, num_bytes in edges.items()}

    def busiest_s(self, edges: EdgeBytes) -> float:
        """Seconds of the edge that needs most for its bytes."""
        return max(self.edge_seconds(edges).values(), default=0.0)

    def _large_exchange(self, traffic: Traffic) -> Exchange:
        moving = [
            (*pair, num_bytes)
            for pair, num_bytes in traffic.items()
            if num_bytes > 0 and pair[0] != pair[1]
        ]
        if not moving:
            return NO_EXCHANGE
        network = flow_network(self.instance.cluster)
        sources = [network.device_index[source] for source, _, _ in moving]
        targets = [network.device_index[target] for _, target, _ in moving]
        total = network.zeros()
        network.add_edge_bytes(total, sources, targets, [num_bytes for _, _, num_bytes in moving])
        edges = {network.edges[idx]: float(total[idx]) for idx in total.nonzero()[0]}
        latency_s = float(network.pair_latency_s(sources, targets).max())
        return Exchange(self.busiest_s(edges) + latency_s, edges)


class _ByIdentity:
    """Hashes an instance by what object it is: comparing whole clusters would cost more."""

    __slots__ = ("instance",)

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    def __hash__(self) -> int:
        return id(self.instance)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.instance is self.instance


@lru_cache(maxsize=8)
def _book(key: _ByIdentity) -> PriceBook:
    return PriceBook(key.instance)


def price_book(instance: Instance) -> PriceBook:
    """The book of an instance; the same object while the instance is in recent use."""
    return _book(_ByIdentity(instance))

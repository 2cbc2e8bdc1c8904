"""How many bytes per second can enter or leave a set of devices, whatever the traffic is.

If every route from the outside into a set passes one of some edges, no flow set moves more than
those edges together carry. Candidate edge sets are read off the routes: the first edges, the last
ones, the narrowest ones, and the ones at each place counted from either end; the least wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hexisolve.cost.communication import flow_network
from hexisolve.data.instance import Instance
from hexisolve.formulation.pipeline_table import IntArray


@dataclass(frozen=True)
class Cut:
    """A set of devices of a column and the rates across its border.

    Parameters
    ----------
    inside
        Positions in the column's list of devices.
    in_bytes_per_s, out_bytes_per_s
        Upper limits, link efficiency included; infinite when nothing is outside.
    """

    inside: tuple[int, ...]
    in_bytes_per_s: float
    out_bytes_per_s: float


class CutRates:
    """Answers for sets of devices of one instance, remembered."""

    def __init__(self, instance: Instance) -> None:
        self.network = flow_network(instance.cluster)
        self.efficiency = instance.cost.link_efficiency
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
        self._behind: dict[tuple[int, ...], tuple[tuple[int, ...], ...]] = {}

    def rate_bytes_per_s(self, sources: Sequence[int], targets: Sequence[int]) -> float:
        """Upper limit on bytes/s from `sources` to `targets` (device numbers, disjoint)."""
        key = (tuple(sources), tuple(targets))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._rate(*key)
        return known

    def border_bytes_per_s(self, own: tuple[int, ...]) -> tuple[float, float]:
        """Into and out of devices of one host, from and to all other hosts."""
        devices = self.network.cluster.devices
        host = devices[own[0]].host
        others = [n for n, device in enumerate(devices) if device.host != host]
        return self.rate_bytes_per_s(others, own), self.rate_bytes_per_s(own, others)

    def edge_limits(self, own: tuple[int, ...], inside: tuple[int, ...]) -> tuple[float, float]:
        """Into and out of a part of a host behind one edge, from and to the rest of the host."""
        others = [n for n in own if n not in inside]
        return self.rate_bytes_per_s(others, inside), self.rate_bytes_per_s(inside, others)

    def behind_edges(self, own: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Sets of devices of a host that all traffic from its other devices reaches over one edge.

        Only sets that anything from outside the host reaches over that edge as well.
        """
        known = self._behind.get(own)
        if known is None:
            known = self._behind[own] = tuple(sorted(self._find_behind(own)))
        return known

    def _find_behind(self, own: tuple[int, ...]) -> set[tuple[int, ...]]:
        devices = self.network.cluster.devices
        host = devices[own[0]].host
        outside = [n for n, device in enumerate(devices) if device.host != host]
        everyone = np.array([*own, *outside[:1]], dtype=np.int64)
        left = np.repeat(everyone, len(own))
        right = np.tile(np.array(own, dtype=np.int64), len(everyone))
        apart = left != right
        left, right = left[apart], right[apart]
        reachable = np.isfinite(self.network.pair_latency_s(left, right))
        left, right = left[reachable], right[reachable]
        found: set[tuple[int, ...]] = set()
        if not len(left):
            return found
        routes = self.network.route_table(left, right)
        for edge in np.unique(routes):
            if edge == self.network.num_edges:
                continue
            uses = (routes == edge).any(axis=1)
            sources, targets = set(left[uses].tolist()), set(right[uses].tolist())
            is_cut = sources.isdisjoint(targets) and sources >= set(everyone.tolist()) - targets
            if is_cut and 1 < len(targets) < len(own):
                found.add(tuple(sorted(targets)))
        return found

    def _rate(self, sources: Sequence[int], targets: Sequence[int]) -> float:
        if not sources or not targets:
            return float("inf")
        left = np.repeat(np.array(sources, dtype=np.int64), len(targets))
        right = np.tile(np.array(targets, dtype=np.int64), len(sources))
        reachable = np.isfinite(self.network.pair_latency_s(left, right))
        if not reachable.any():
            return 0.0
        routes = self.network.route_table(left, right)[reachable].astype(np.int64)
        rates = self.network.edge_bytes_per_s
        is_padding = routes == self.network.num_edges
        routes = np.take_along_axis(routes, np.argsort(is_padding, axis=1, kind="stable"), axis=1)
        lengths = (~is_padding).sum(axis=1)
        rows = np.arange(len(routes))
        candidates: list[IntArray] = [routes[rows, np.argmin(rates[routes], axis=1)]]
        for place in range(int(lengths.min())):
            candidates += [routes[:, place], routes[rows, lengths - 1 - place]]
        least = min(float(rates[np.unique(edges)].sum()) for edges in candidates)
        return least * self.efficiency


def column_cuts(rates: CutRates, devices: Sequence[int], hosts: Sequence[str]) -> tuple[Cut, ...]:
    """Cuts of a column worth a row: its hosts, and what lies behind one edge inside a host.

    Parameters
    ----------
    devices
        Numbers of the column's devices.
    hosts
        Host of each of them.
    """
    cuts = []
    for host in dict.fromkeys(hosts):
        places = tuple(idx for idx, own in enumerate(hosts) if own == host)
        own = tuple(devices[idx] for idx in places)
        if len(own) < len(devices) and len(own) > 1:
            cuts.append(Cut(places, *rates.border_bytes_per_s(own)))
        for inside in rates.behind_edges(own):
            if len(inside) > 1:
                members = tuple(idx for idx in places if devices[idx] in inside)
                limits = rates.edge_limits(own, inside)
                cuts.append(Cut(members, *limits))
    return tuple(cuts)

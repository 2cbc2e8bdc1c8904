"""How many bytes per second can enter or leave a set of devices, whatever the traffic is.

If every route from the outside into a set passes one of some edges, no flow set moves more than
those edges together carry. Candidate edge sets are read off the routes: the first edges, the last
ones, the narrowest ones, and the ones at each place counted from either end; the least wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def rate_bytes_per_s(self, sources: Sequence[int], targets: Sequence[int]) -> float:
        """Upper limit on bytes/s from `sources` to `targets` (device numbers, disjoint)."""
        key = (tuple(sources), tuple(targets))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._rate(*key)
        return known

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
    sets: set[tuple[int, ...]] = set()
    for host in set(hosts):
        sets.add(tuple(idx for idx, own in enumerate(hosts) if own == host))
    sets |= _behind_edges(rates, devices)
    cuts = []
    everyone = range(len(devices))
    for inside in sorted(sets):
        # Single devices are priced together (R3, R6), and so are all but one.
        if not 1 < len(inside) < len(devices) - 1:
            continue
        own = [devices[idx] for idx in inside]
        others = [devices[idx] for idx in everyone if idx not in inside]
        cuts.append(
            Cut(inside, rates.rate_bytes_per_s(others, own), rates.rate_bytes_per_s(own, others))
        )
    return tuple(cuts)


def _behind_edges(rates: CutRates, devices: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """Sets of devices that all traffic from the rest reaches over one edge."""
    numbers = np.array(devices, dtype=np.int64)
    left, right = np.repeat(numbers, len(numbers)), np.tile(numbers, len(numbers))
    apart = left != right
    left, right = left[apart], right[apart]
    if not len(left):
        return set()
    routes = rates.network.route_table(left, right)
    position = {device: idx for idx, device in enumerate(devices)}
    found = set()
    for edge in np.unique(routes):
        if edge == rates.network.num_edges:
            continue
        uses = (routes == edge).any(axis=1)
        sources, targets = set(left[uses].tolist()), set(right[uses].tolist())
        if sources.isdisjoint(targets) and len(sources) + len(targets) == len(devices):
            found.add(tuple(sorted(position[device] for device in targets)))
    return found

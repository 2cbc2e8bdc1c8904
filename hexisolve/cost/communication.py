"""How long an exchange takes: simultaneous flows on the links of a cluster.

``time = max over edges (bytes on the edge / (bytes per s x link efficiency))
+ max over flows (sum of latencies)``. This one rule covers all-to-all, rings, stage boundaries,
collectives, shared NICs, PCIe switches and rails.

Source: docs/clusters.md, "Communication time".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from hexisolve.data.cluster import Cluster, Edge

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_FIRST_WIDTH = 6
_FIRST_ROWS = 64


@dataclass(frozen=True)
class Flow:
    """`num_bytes` from one device to another, both by id."""

    source: str
    target: str
    num_bytes: float


class FlowNetwork:
    """A cluster's routes as integer tables, filled row by row as sources appear.

    Devices are numbered as in ``cluster.devices``. Make it with `flow_network`, which keeps it.

    Parameters
    ----------
    cluster
        The cluster; its graph never changes.

    Attributes
    ----------
    edges
        Every edge of the graph; tables hold positions in it.
    edge_bytes_per_s
        Nominal bytes/s of each edge, and infinity for the padding edge at the end.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.edges: tuple[Edge, ...] = cluster.router.edges
        self.device_index = cluster.device_index
        rates = [cluster.edge_bytes_per_s(edge) for edge in self.edges]
        self.edge_bytes_per_s: FloatArray = np.array([*rates, np.inf])
        latencies_s = [cluster.graph.edges[edge]["latency_s"] for edge in self.edges]
        self._edge_latency_s: FloatArray = np.array([*latencies_s, 0.0])
        self._edge_sources: IntArray = np.array([*cluster.router.edge_sources, 0])
        node_index = cluster.router.node_index
        self._device_nodes: IntArray = np.array([node_index[d.id] for d in cluster.devices])
        num_devices = len(cluster.devices)
        self._padding = len(self.edges)
        # Rows of the two tables are given out in the order in which sources appear.
        self._rows: IntArray = np.full(num_devices, -1)
        self._num_rows = 0
        shape = (min(_FIRST_ROWS, num_devices), num_devices, _FIRST_WIDTH)
        self._route_edges: npt.NDArray[np.int32] = np.empty(shape, dtype=np.int32)
        self._latency_s: FloatArray = np.empty(shape[:2])

    @property
    def num_edges(self) -> int:
        """Edges of the graph, padding excluded."""
        return self._padding

    def time_s(
        self,
        sources: npt.ArrayLike,
        targets: npt.ArrayLike,
        num_bytes: npt.ArrayLike,
        link_efficiency: float,
    ) -> float:
        """Seconds that a set of simultaneous flows takes.

        Parameters
        ----------
        sources, targets
            Device numbers, one pair per flow; equal ones are free.
        num_bytes
            Bytes per flow; zero is free and costs no latency.
        link_efficiency
            Share of nominal bandwidth that transfers reach, in (0, 1].

        Raises
        ------
        InstanceError
            When two devices are not joined.
        """
        routes, latency_s, weights = self._select(sources, targets, num_bytes)
        if not weights.size:
            return 0.0
        edge_bytes = self._bincount(routes, weights)
        busiest_s = float((edge_bytes / self.edge_bytes_per_s).max()) / link_efficiency
        return busiest_s + float(latency_s.max())

    def add_edge_bytes(
        self,
        edge_bytes: FloatArray,
        sources: npt.ArrayLike,
        targets: npt.ArrayLike,
        num_bytes: npt.ArrayLike,
    ) -> None:
        """Add the bytes of flows to `edge_bytes`, an array of `num_edges` (see `zeros`)."""
        routes, _, weights = self._select(sources, targets, num_bytes)
        if weights.size:
            edge_bytes += self._bincount(routes, weights)[: self._padding]

    def zeros(self) -> FloatArray:
        """No bytes on any edge: what `add_edge_bytes` starts from."""
        return np.zeros(self._padding)

    def busiest_edge_s(self, edge_bytes: FloatArray, link_efficiency: float) -> float:
        """Seconds that the edge with the most work needs for these bytes."""
        if not self._padding:
            return 0.0
        seconds = edge_bytes / self.edge_bytes_per_s[: self._padding]
        return float(seconds.max()) / link_efficiency

    def route_table(self, sources: npt.ArrayLike, targets: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Edge positions of each pair's route, padded with `num_edges`."""
        source_idx, target_idx = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
        self._fill(source_idx)
        table: npt.NDArray[np.int32] = self._route_edges[self._rows[source_idx], target_idx]
        return table

    def pair_latency_s(self, sources: npt.ArrayLike, targets: npt.ArrayLike) -> FloatArray:
        """Sum of latencies of each pair's route; infinite when there is none."""
        source_idx, target_idx = np.asarray(sources, np.int64), np.asarray(targets, np.int64)
        self._fill(source_idx)
        latency_s: FloatArray = self._latency_s[self._rows[source_idx], target_idx]
        return latency_s

    def _select(
        self, sources: npt.ArrayLike, targets: npt.ArrayLike, num_bytes: npt.ArrayLike
    ) -> tuple[npt.NDArray[np.int32], FloatArray, FloatArray]:
        source_idx = np.asarray(sources, np.int64)
        target_idx = np.asarray(targets, np.int64)
        weights = np.asarray(num_bytes, np.float64)
        moves = (source_idx != target_idx) & (weights > 0)
        if not moves.all():
            source_idx, target_idx, weights = source_idx[moves], target_idx[moves], weights[moves]
        self._fill(source_idx)
        rows = self._rows[source_idx]
        latency_s = self._latency_s[rows, target_idx]
        if weights.size and not np.isfinite(latency_s).all():
            first = int(np.argmin(np.isfinite(latency_s)))
            devices = self.cluster.devices
            self.cluster.route(devices[source_idx[first]].id, devices[target_idx[first]].id)
        return self._route_edges[rows, target_idx], latency_s, weights

    def _bincount(self, routes: npt.NDArray[np.int32], weights: FloatArray) -> FloatArray:
        spread = np.repeat(weights, routes.shape[1])
        total = np.bincount(routes.ravel(), spread, minlength=self._padding + 1)
        return total.astype(np.float64, copy=False)

    def _fill(self, sources: IntArray) -> None:
        missing = sources[self._rows[sources] < 0]
        for source in np.unique(missing):
            self._fill_row(int(source))

    def _fill_row(self, source: int) -> None:
        """Walk back from all devices at once along the last edges of the routes from `source`."""
        start = self._device_nodes[source]
        last_edge = np.array(self.cluster.router.search(int(start)))
        nodes = self._device_nodes.copy()
        is_reached = (last_edge[nodes] >= 0) | (nodes == start)
        nodes[~is_reached] = start
        columns = []
        while (nodes != start).any():
            edges = np.where(nodes == start, self._padding, last_edge[nodes])
            columns.append(edges)
            nodes = self._edge_sources[edges]
            nodes[edges == self._padding] = start
        self._make_room(len(columns))
        row = self._route_edges[self._num_rows]
        row[:] = self._padding
        latency_s = np.zeros(len(nodes))
        for column, edges in enumerate(reversed(columns)):
            row[:, column] = edges
            latency_s += self._edge_latency_s[edges]
        self._latency_s[self._num_rows] = np.where(is_reached, latency_s, np.inf)
        self._rows[source] = self._num_rows
        self._num_rows += 1

    def _make_room(self, num_hops: int) -> None:
        """Widen the tables for routes of `num_hops`, and double their rows when they are full."""
        num_rows, num_devices, width = self._route_edges.shape
        rows = min(2 * num_rows, num_devices) if self._num_rows == num_rows else num_rows
        if rows > num_rows or num_hops > width:
            pad = ((0, rows - num_rows), (0, 0), (0, max(0, num_hops - width)))
            self._route_edges = np.pad(self._route_edges, pad, constant_values=self._padding)
            self._latency_s = np.pad(self._latency_s, pad[:2])


@lru_cache(maxsize=16)
def flow_network(cluster: Cluster) -> FlowNetwork:
    """Compile the routes of a cluster, once per cluster."""
    return FlowNetwork(cluster)


def exchange_time_s(cluster: Cluster, flows: Iterable[Flow], link_efficiency: float) -> float:
    """Price simultaneous flows, in seconds.

    ``max over edges (bytes / (bytes per s x efficiency)) + max over flows (sum of latencies)``.
    Flows of no bytes, or from a device to itself, are free.

    Raises
    ------
    InstanceError
        When a device is unknown or two of them are not joined.
    """
    return flow_network(cluster).time_s(*_arrays(cluster, flows), link_efficiency)


def edge_bytes(cluster: Cluster, flows: Iterable[Flow]) -> dict[Edge, float]:
    """Bytes on every edge that simultaneous or successive flows use."""
    network = flow_network(cluster)
    total = network.zeros()
    network.add_edge_bytes(total, *_arrays(cluster, flows))
    return {network.edges[index]: float(total[index]) for index in np.flatnonzero(total)}


def edge_seconds(
    cluster: Cluster, bytes_on_edges: dict[Edge, float], link_efficiency: float
) -> dict[Edge, float]:
    """Seconds each edge needs: ``bytes / (bytes per s x efficiency)``."""
    return {
        edge: num_bytes / (cluster.edge_bytes_per_s(edge) * link_efficiency)
        for edge, num_bytes in bytes_on_edges.items()
    }


def _arrays(
    cluster: Cluster, flows: Iterable[Flow]
) -> tuple[Sequence[int], Sequence[int], Sequence[float]]:
    index, known = cluster.device_index, list(flows)
    for flow in known:
        if flow.source not in index or flow.target not in index:
            cluster.device(flow.source), cluster.device(flow.target)
    return (
        [index[flow.source] for flow in known],
        [index[flow.target] for flow in known],
        [flow.num_bytes for flow in known],
    )

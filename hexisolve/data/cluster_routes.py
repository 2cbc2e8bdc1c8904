"""Which way traffic takes through a cluster's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hexisolve.data.cluster import Edge, Route, natural_key

if TYPE_CHECKING:
    import networkx

_NO_BOX = -1


class Router:
    """Routes of one graph: fewest hops, then widest, then first by node names.

    A route never passes a device, never enters a box other than the source's and the target's,
    and never turns around inside a NIC. Nodes and edges are numbered once, because large clusters
    are searched from every device.

    Parameters
    ----------
    graph
        The cluster's graph; it must not change afterwards.

    Attributes
    ----------
    edges
        Every edge, in the order of the graph.
    edge_sources
        Number of the node each edge leaves.
    node_index
        Number of each node; numbers follow the natural order of names.
    """

    def __init__(self, graph: networkx.DiGraph[str]) -> None:
        names = sorted(graph, key=natural_key)
        self.node_index = {name: index for index, name in enumerate(names)}
        self.edges: tuple[Edge, ...] = tuple(graph.edges)
        self.edge_sources = [self.node_index[source] for source, _ in self.edges]
        self._latencies_s = [graph.edges[edge]["latency_s"] for edge in self.edges]
        boxes: dict[str, int] = {}
        self._boxes = [_box_number(graph.nodes[name].get("host"), boxes) for name in names]
        self._is_nic = [graph.nodes[name]["kind"] == "nic" for name in names]
        self._is_device = [graph.nodes[name]["kind"] == "device" for name in names]
        self._leaving: list[list[tuple[int, int, float]]] = [[] for _ in names]
        for index, (source, target) in enumerate(self.edges):
            link = (index, self.node_index[target], graph.edges[source, target]["bytes_per_s"])
            self._leaving[self.node_index[source]].append(link)
        for links in self._leaving:
            links.sort(key=lambda link: link[1])

    def search(self, source: int) -> list[int]:
        """Return the last edge of the route from `source` to each node, -1 where there is none."""
        num_nodes = len(self._boxes)
        own_box = self._boxes[source]
        last_edge, hops_to = [-1] * num_nodes, [0] * num_nodes
        width_to = [0.0] * num_nodes
        width_to[source] = float("inf")
        frontier, hops = [source], 0
        while frontier:
            hops += 1
            rank_of: dict[int, int] = {}
            for rank, node in enumerate(frontier):  # in the order of their routes' names
                box, width = self._boxes[node], width_to[node]
                is_free = box in (_NO_BOX, own_box)
                is_turning = self._is_nic[node] and self._came_from_box(node, last_edge)
                for edge, target, bytes_per_s in self._leaving[node]:
                    known_hops = hops_to[target]
                    if target == source or (known_hops and known_hops < hops):
                        continue
                    target_box = self._boxes[target]
                    if not is_free and target_box != box:
                        continue  # inside somebody else's box there is no way out again
                    if is_turning and target_box == box:
                        continue
                    through = min(width, bytes_per_s)
                    if not known_hops or through > width_to[target]:
                        last_edge[target], hops_to[target] = edge, hops
                        width_to[target] = through
                        rank_of[target] = rank
            frontier = sorted(
                (node for node in rank_of if not self._is_device[node]),
                key=lambda node: (rank_of[node], node),
            )
        return last_edge

    def _came_from_box(self, node: int, last_edge: list[int]) -> bool:
        edge = last_edge[node]
        return edge >= 0 and self._boxes[self.edge_sources[edge]] == self._boxes[node] != _NO_BOX

    def route(self, source: str, target: str, last_edge: list[int]) -> Route | None:
        """Return the route in a result of `search` from `source`, or None when there is none."""
        start, node = self.node_index[source], self.node_index[target]
        found: list[int] = []
        while node != start:
            edge = last_edge[node]
            if edge < 0:
                return None
            found.append(edge)
            node = self.edge_sources[edge]
        found.reverse()
        latency_s = sum(self._latencies_s[edge] for edge in found)
        return Route(tuple(self.edges[edge] for edge in found), latency_s)


def _box_number(host: str | None, boxes: dict[str, int]) -> int:
    return _NO_BOX if host is None else boxes.setdefault(host, len(boxes))

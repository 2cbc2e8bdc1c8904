"""Which way traffic takes through a cluster's graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hexisolve.data.cluster import Edge, Route, natural_key

if TYPE_CHECKING:
    import networkx


@dataclass
class _Step:
    """How one node was reached: the best way of its hop count so far."""

    parent: str
    bytes_per_s: float
    hops: int
    from_own_box: bool


def routes_from(graph: networkx.DiGraph[str], source: str) -> Mapping[str, Route]:
    """Routes from device `source` to every device it reaches: fewest hops, then widest, then
    first by node names.

    A route never passes a device, never enters a box other than the source's and the target's,
    and never turns around inside a NIC.
    """
    steps = _search(graph, source)
    routes: dict[str, Route] = {}
    for node in steps:
        if graph.nodes[node]["kind"] == "device":
            routes[node] = _walk(graph, source, node, steps)
    return routes


def _search(graph: networkx.DiGraph[str], source: str) -> dict[str, _Step]:
    nodes, adjacency = graph.nodes, graph.adj
    own_box = nodes[source].get("host")
    steps: dict[str, _Step] = {}
    frontier = [source]
    hops = 0
    while frontier:
        hops += 1
        reached: dict[str, int] = {}
        for rank, node in enumerate(frontier):  # in order of their paths' names
            box = nodes[node].get("host")
            came = steps.get(node)
            width = came.bytes_per_s if came else float("inf")
            is_turning = came is not None and nodes[node]["kind"] == "nic" and came.from_own_box
            for target, link in adjacency[node].items():
                target_box = nodes[target].get("host")
                if target == source or not _may_enter(box, target_box, own_box, is_turning):
                    continue
                known = steps.get(target)
                if known is not None and known.hops < hops:
                    continue
                through = min(width, link["bytes_per_s"])
                if known is None or through > known.bytes_per_s:
                    in_own_box = box is not None and box == own_box
                    steps[target] = _Step(node, through, hops, in_own_box)
                    reached[target] = rank
        frontier = sorted(
            (node for node in reached if nodes[node]["kind"] != "device"),
            key=lambda node: (reached[node], natural_key(node)),
        )
    return steps


def _may_enter(
    box: str | None, target_box: str | None, own_box: str | None, is_turning: bool
) -> bool:
    if is_turning and target_box == box:
        return False
    if box is None or box == own_box:
        return True
    return target_box == box  # inside somebody else's box there is no way out again


def _walk(
    graph: networkx.DiGraph[str], source: str, target: str, steps: Mapping[str, _Step]
) -> Route:
    edges: list[Edge] = []
    node = target
    while node != source:
        edges.append((steps[node].parent, node))
        node = steps[node].parent
    edges.reverse()
    return Route(tuple(edges), sum(graph.edges[edge]["latency_s"] for edge in edges))

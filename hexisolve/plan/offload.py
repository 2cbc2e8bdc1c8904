"""Kept activations that wait in host memory: the way there, and its seconds."""

from __future__ import annotations

from collections.abc import Sequence

from hexisolve.data.cluster import Cluster, Edge
from hexisolve.plan.price_book import PriceBook


def host_path(cluster: Cluster, device_id: str) -> tuple[Edge, ...]:
    """Edges from a device to the host node of its box, fewest hops; empty when it has none."""
    graph, box = cluster.graph, cluster.device(device_id).host
    paths: dict[str, tuple[Edge, ...]] = {device_id: ()}
    frontier = [device_id]
    while frontier:
        reached = []
        for node in frontier:
            for target in graph.adj[node]:
                data = graph.nodes[target]
                if target in paths or data.get("host") != box or data["kind"] == "device":
                    continue
                paths[target] = (*paths[node], (node, target))
                if data["kind"] == "host":
                    return paths[target]
                reached.append(target)
        frontier = reached
    return ()


def offload_s(book: PriceBook, devices: Sequence[str], num_bytes: Sequence[int]) -> float:
    """Seconds in which all ranks of a stage move their bytes to host memory (or back).

    0 where there is nothing to move. Devices without a way to host memory are a violation of
    `check_plan`; here they count as free.
    """
    edges: dict[Edge, float] = {}
    latency_s = 0.0
    for device, moved in zip(devices, num_bytes, strict=True):
        if moved:
            path = host_path(book.instance.cluster, device)
            for edge in path:
                edges[edge] = edges.get(edge, 0.0) + moved
            graph = book.instance.cluster.graph
            latency_s = max(latency_s, sum(graph.edges[edge]["latency_s"] for edge in path))
    return book.busiest_s(edges) + latency_s

"""Interchangeable devices, hosts and switches: what the graph cannot tell apart.

Two sets of nodes are interchangeable when exchanging just them, everything else fixed, is an
automorphism of the graph: same figures, same links inside, same links to everyone else. That is
an equivalence, so members are compared with one representative of each class. Names play no part
except as the first guess of which node answers to which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hexisolve.data.cluster import Cluster

if TYPE_CHECKING:
    import networkx

Classes = tuple[tuple[str, ...], ...]
# Attributes that name a place instead of describing what stands there.
_PLACES = ("host", "fabric")


@dataclass(frozen=True)
class Symmetry:
    """Classes of interchangeable things, from the inside out.

    Parameters
    ----------
    device_classes
        Device ids; devices of one class sit in one host.
    host_classes
        Host ids, each host with everything in it.
    switch_classes
        Ids of switches outside the hosts, each with the hosts that no sister switch shares.
    """

    device_classes: Classes
    host_classes: Classes
    switch_classes: Classes


def find_symmetry(cluster: Cluster) -> Symmetry:
    """All three levels of classes, each in the order of the file."""
    return Symmetry(device_classes(cluster), host_classes(cluster), switch_classes(cluster))


def device_classes(cluster: Cluster) -> Classes:
    """Classes of devices that can be exchanged one for one."""
    sets = {device.id: [device.id] for device in cluster.devices}
    return _classes(cluster.graph, sets)


def host_classes(cluster: Cluster) -> Classes:
    """Classes of hosts that can be exchanged with all they contain."""
    return _classes(cluster.graph, _host_sets(cluster))


def switch_classes(cluster: Cluster) -> Classes:
    """Classes of network switches that can be exchanged with the hosts under them."""
    graph, hosts = cluster.graph, _host_sets(cluster)
    node2host = {node: host for host, nodes in hosts.items() for node in nodes}
    under: dict[str, set[str]] = {}
    for node in graph:
        if graph.nodes[node]["kind"] == "switch" and node not in node2host:
            neighbours = set(graph.successors(node)) | set(graph.predecessors(node))
            under[node] = {node2host[other] for other in neighbours if other in node2host}
    sets: dict[str, list[str]] = {}
    for switch, members in under.items():
        # Only switches that part the hosts: others contain no whole group to exchange.
        is_shared = any(
            members & others and not members <= others
            for other, others in under.items()
            if other != switch
        )
        inside = members if members and not is_shared and len(members) < len(hosts) else set()
        sets[switch] = [switch, *(node for host in hosts if host in inside for node in hosts[host])]
    return _classes(graph, sets)


def _host_sets(cluster: Cluster) -> dict[str, list[str]]:
    sets: dict[str, list[str]] = {host: [] for host in cluster.hosts()}
    for node, data in cluster.graph.nodes.items():
        if data.get("host") in sets:
            sets[data["host"]].append(node)
    return sets


def _classes(graph: networkx.DiGraph[str], sets: dict[str, list[str]]) -> Classes:
    """Partition names by exchangeability of their node sets."""
    buckets: dict[Any, list[list[str]]] = {}
    order: list[list[str]] = []
    for name, nodes in sets.items():
        bucket = buckets.setdefault(_fingerprint(graph, nodes), [])
        for members in bucket:
            if _are_interchangeable(graph, sets[members[0]], nodes):
                members.append(name)
                break
        else:
            bucket.append([name])
            order.append(bucket[-1])
    return tuple(tuple(members) for members in order)


def _fingerprint(graph: networkx.DiGraph[str], nodes: Sequence[str]) -> Any:
    """Something equal for interchangeable sets: figures and links of their nodes, unordered."""
    inside = set(nodes)
    return _unordered(
        (
            _figures(graph, node),
            _unordered(_link(data) for _, target, data in graph.out_edges(node, data=True)
                       if target in inside),
            _unordered(_link(data) for _, _, data in graph.out_edges(node, data=True)),
            _unordered(_link(data) for _, _, data in graph.in_edges(node, data=True)),
        )
        for node in nodes
    )  # fmt: skip


def _unordered(entries: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(entries, key=repr))


def _figures(graph: networkx.DiGraph[str], node: str) -> tuple[Any, ...]:
    data = graph.nodes[node]
    return tuple(sorted((key, value) for key, value in data.items() if key not in _PLACES))


def _link(data: dict[str, float]) -> tuple[float, float]:
    return data["bytes_per_s"], data["latency_s"]


def _are_interchangeable(
    graph: networkx.DiGraph[str], first: Sequence[str], second: Sequence[str]
) -> bool:
    """Whether some one-to-one exchange of two disjoint node sets is an automorphism."""
    if len(first) != len(second) or set(first) & set(second):
        return False
    guess = dict(zip(first, second, strict=True))
    if _is_exchange(graph, guess):
        return True
    if len(first) == 1:
        return False
    return any(_is_exchange(graph, mapping) for mapping in _isomorphisms(graph, first, second))


def _is_exchange(graph: networkx.DiGraph[str], mapping: dict[str, str]) -> bool:
    """Whether exchanging each key with its value, all else fixed, keeps every node and link."""
    swap = mapping | {value: key for key, value in mapping.items()}
    for node, image in swap.items():
        if _figures(graph, node) != _figures(graph, image):
            return False
        for neighbours, of_image in (
            (graph.succ[node], graph.succ[image]),
            (graph.pred[node], graph.pred[image]),
        ):
            if len(neighbours) != len(of_image):
                return False
            for other, data in neighbours.items():
                link = of_image.get(swap.get(other, other))
                if link is None or _link(link) != _link(data):
                    return False
    return True


def _isomorphisms(
    graph: networkx.DiGraph[str], first: Sequence[str], second: Sequence[str]
) -> Iterable[dict[str, str]]:
    """One-to-one mappings that keep figures, inner links and links to each outside node."""
    from networkx.algorithms.isomorphism import DiGraphMatcher

    pictures = [_picture(graph, own, other) for own, other in ((first, second), (second, first))]
    same: Callable[[Any, Any], bool] = lambda a, b: a["colour"] == b["colour"]  # noqa: E731
    matcher = DiGraphMatcher(*pictures, node_match=same, edge_match=same)
    yield from matcher.isomorphisms_iter()


def _picture(
    graph: networkx.DiGraph[str], own: Sequence[str], other: Sequence[str]
) -> networkx.DiGraph[str]:
    """The nodes with their inner links; links outwards are part of a node's colour."""
    picture: networkx.DiGraph[str] = graph.__class__()
    inside, opposite = set(own), set(other)
    for node in own:
        outward = _unordered(
            (direction, "" if end in opposite else end, _link(data))
            for direction, neighbours in (("out", graph.succ[node]), ("in", graph.pred[node]))
            for end, data in neighbours.items()
            if end not in inside
        )
        picture.add_node(node, colour=(_figures(graph, node), outward))
    for source in own:
        for target, data in graph.succ[source].items():
            if target in inside:
                picture.add_edge(source, target, colour=_link(data))
    return picture

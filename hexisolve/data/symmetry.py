"""Interchangeable devices, hosts and switches: what the graph cannot tell apart.

Two sets of nodes are interchangeable when exchanging just them, everything else fixed, is an
automorphism of the graph: same figures, same links inside, same links to everyone else. That is
an equivalence, so members are compared with one representative of each class. Names play no part
except as the first guess of which node answers to which.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hexisolve.data.cluster import Cluster

if TYPE_CHECKING:
    import networkx

Classes = tuple[tuple[str, ...], ...]
Places = Mapping[str, str]
# Attributes that name a place instead of describing what stands there.
_PLACES = ("host", "fabric")


@dataclass(frozen=True)
class Symmetry:
    """Classes of interchangeable things, from the inside out.

    Parameters
    ----------
    device_classes
        Device ids, each with the NICs that serve it alone; one host to a class.
    host_classes
        Host ids, each host with everything in it.
    switch_classes
        Ids of switches, each with the devices or hosts that hang on it alone.
    """

    device_classes: Classes
    host_classes: Classes
    switch_classes: Classes


def find_symmetry(cluster: Cluster) -> Symmetry:
    """All three levels of classes, each in the order of the file."""
    return Symmetry(device_classes(cluster), host_classes(cluster), switch_classes(cluster))


def device_classes(cluster: Cluster) -> Classes:
    """Classes of devices that can be exchanged, each with the NICs that serve it alone."""
    places = {device.id: device.host for device in cluster.devices}
    return _classes(cluster.graph, _device_sets(cluster), places)


def host_classes(cluster: Cluster) -> Classes:
    """Classes of hosts that can be exchanged with all they contain."""
    return _classes(cluster.graph, _host_sets(cluster), {})


def switch_classes(cluster: Cluster) -> Classes:
    """Classes of switches that can be exchanged with what hangs on them.

    Inside a host these are devices (and one host makes a class), in a network hosts and smaller
    switches. A switch whose members also hang on another one, neither smaller nor larger, stands
    for itself alone.
    """
    graph = cluster.graph
    hosts, devices = _host_sets(cluster), _device_sets(cluster)
    node2host = {node: host for host, nodes in hosts.items() for node in nodes}
    places, members = {}, {}
    for switch in (node for node in graph if graph.nodes[node]["kind"] == "switch"):
        places[switch] = node2host.get(switch, "")
        neighbours = _neighbours(graph, switch)
        members[switch] = {
            node if places[switch] else node2host[node]
            for node in neighbours
            if (node in devices if places[switch] else node in node2host)
        }
    sets: dict[str, list[str]] = {}
    for switch, place in places.items():
        own, contents = members[switch], devices if place else hosts
        sisters = [other for other in places if places[other] == place and other != switch]
        is_nested = all(
            members[other] < own or own < members[other] or not members[other] & own
            for other in sisters
        )
        sets[switch] = [switch]
        if is_nested and len(own) < len(contents):
            sets[switch] += [node for unit in contents if unit in own for node in contents[unit]]
            sets[switch] += [other for other in sisters if members[other] and members[other] < own]
    return _classes(graph, sets, places)


def _device_sets(cluster: Cluster) -> dict[str, list[str]]:
    """Each device with the NICs of its host that no other device and no switch uses."""
    graph = cluster.graph
    sets: dict[str, list[str]] = {}
    for device in cluster.devices:
        sets[device.id] = [device.id]
        for node in sorted(_neighbours(graph, device.id)):
            inner = [end for end in _neighbours(graph, node) if "host" in graph.nodes[end]]
            if graph.nodes[node]["kind"] == "nic" and inner == [device.id]:
                sets[device.id].append(node)
    return sets


def _neighbours(graph: networkx.DiGraph[str], node: str) -> list[str]:
    return list(dict.fromkeys([*graph.succ[node], *graph.pred[node]]))


def _host_sets(cluster: Cluster) -> dict[str, list[str]]:
    sets: dict[str, list[str]] = {host: [] for host in cluster.hosts()}
    for node, data in cluster.graph.nodes.items():
        if data.get("host") in sets:
            sets[data["host"]].append(node)
    return sets


def _classes(graph: networkx.DiGraph[str], sets: dict[str, list[str]], places: Places) -> Classes:
    """Partition names by exchangeability of their node sets; other places are never compared."""
    compare = _Comparison(graph)
    buckets: dict[Any, list[list[str]]] = {}
    order: list[list[str]] = []
    for name, nodes in sets.items():
        key = (places.get(name), len(nodes), compare.figures(nodes[0]))
        bucket = buckets.setdefault(key, [])
        for members in bucket:
            if compare.are_interchangeable(sets[members[0]], nodes):
                members.append(name)
                break
        else:
            bucket.append([name])
            order.append(bucket[-1])
    return tuple(tuple(members) for members in order)


class _Comparison:
    """Compares node sets of one graph; keeps what it computed per node."""

    def __init__(self, graph: networkx.DiGraph[str]) -> None:
        self.graph = graph
        self._figures: dict[str, tuple[Any, ...]] = {}

    def figures(self, node: str) -> tuple[Any, ...]:
        """Return what a node is, without its name and place."""
        found = self._figures.get(node)
        if found is None:
            data = self.graph.nodes[node]
            found = tuple(sorted((key, data[key]) for key in data if key not in _PLACES))
            self._figures[node] = found
        return found

    def are_interchangeable(self, first: Sequence[str], second: Sequence[str]) -> bool:
        """Whether some one-to-one exchange of two disjoint node sets is an automorphism."""
        if len(first) != len(second) or set(first) & set(second):
            return False
        if self._is_exchange(dict(zip(first, second, strict=True))):
            return True
        if len(first) == 1:
            return False
        pictures = self._picture(first, second), self._picture(second, first)
        if _colours(pictures[0]) != _colours(pictures[1]):
            return False
        return any(self._is_exchange(mapping) for mapping in _isomorphisms(*pictures))

    def _is_exchange(self, mapping: Mapping[str, str]) -> bool:
        """Whether exchanging each key with its value keeps every node and link."""
        swap = {**mapping, **{value: key for key, value in mapping.items()}}
        for node, image in swap.items():
            if self.figures(node) != self.figures(image):
                return False
            for links in (self.graph.succ, self.graph.pred):
                neighbours, of_image = links[node], links[image]
                if len(neighbours) != len(of_image):
                    return False
                for other, data in neighbours.items():
                    if of_image.get(swap.get(other, other)) != data:
                        return False
        return True

    def _picture(self, own: Sequence[str], other: Sequence[str]) -> networkx.DiGraph[str]:
        """Return the nodes with their inner links; links outwards are part of a node's colour."""
        picture = self.graph.__class__()
        inside, opposite = set(own), set(other)
        for node in own:
            outward = _unordered(
                (direction, "" if end in opposite else end, _link(data))
                for direction, links in (("out", self.graph.succ), ("in", self.graph.pred))
                for end, data in links[node].items()
                if end not in inside
            )
            picture.add_node(node, colour=(self.figures(node), outward))
        for source in own:
            for target, data in self.graph.succ[source].items():
                if target in inside:
                    picture.add_edge(source, target, colour=_link(data))
        return picture


def _isomorphisms(
    first: networkx.DiGraph[str], second: networkx.DiGraph[str]
) -> Iterator[Mapping[str, str]]:
    """Yield the one-to-one mappings that keep colours of nodes and links."""
    from networkx.algorithms.isomorphism import DiGraphMatcher

    def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        return bool(one["colour"] == other["colour"])

    matcher: Any = DiGraphMatcher
    yield from matcher(first, second, node_match=same, edge_match=same).isomorphisms_iter()


def _colours(picture: networkx.DiGraph[str]) -> tuple[Any, ...]:
    return _unordered(data["colour"] for _, data in picture.nodes(data=True))


def _unordered(entries: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(entries, key=repr))


def _link(data: Mapping[str, float]) -> tuple[float, float]:
    return data["bytes_per_s"], data["latency_s"]

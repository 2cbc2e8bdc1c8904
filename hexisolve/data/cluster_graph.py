"""The graph of a cluster while it is being read: nodes and links with their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hexisolve.data.cluster import Device
from hexisolve.data.reading import Fields
from hexisolve.units import format_bytes_per_s, parse_bytes_per_s, parse_seconds

if TYPE_CHECKING:
    import networkx

MAX_DEVICES = 16_384
_MAX_LINK_BYTES_PER_S = 1e15
_USUAL_LINK_BYTES_PER_S = (1e8, 2e13)
_MAX_LATENCY_S = 10.0


def read_bandwidth(value: object, where: str, fields: Fields) -> float:
    """Bytes/s of a link in one direction; doubts it outside 0.1 - 20,000 GB/s."""
    bytes_per_s = fields.quantity(
        value, where, parse_bytes_per_s, high=_MAX_LINK_BYTES_PER_S,
        shown_range="must be above 0 and at most 10^6 GB/s",
    )  # fmt: skip
    low, high = _USUAL_LINK_BYTES_PER_S
    if not low <= bytes_per_s <= high:
        shown = format_bytes_per_s(bytes_per_s)
        fields.doubts.append(
            f"{where}: {shown} per direction is an unusual link (0.1 to 20,000 GB/s are usual)"
        )
    return bytes_per_s


def read_latency(value: object, where: str, fields: Fields) -> float:
    """Latency of a link in seconds, zero allowed."""
    return fields.quantity(
        value, where, parse_seconds, high=_MAX_LATENCY_S, strict=False,
        shown_range="must lie between 0 and 10 s",
    )  # fmt: skip


class GraphBuilder:
    """Collects nodes and links; a node given twice and a link to nowhere are problems."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.nodes: dict[str, dict[str, Any]] = {}
        self.edges: dict[tuple[str, str], dict[str, float]] = {}

    def add_node(self, node: str, kind: str, where: str, **attributes: Any) -> None:
        """Add a switch, NIC, host or other node."""
        if node in self.nodes:
            self.fields.problem(where, node, "is the id of two nodes", "rename one of them")
            return
        self.nodes[node] = {"kind": kind} | attributes

    def add_device(self, device: Device, where: str) -> None:
        """Add a device with its figures as attributes."""
        attributes = {key: value for key, value in vars(device).items() if key != "id"}
        self.add_node(device.id, "device", where, **attributes)

    def add_edge(self, source: str, target: str, bytes_per_s: float, latency_s: float) -> None:
        """Add one direction; of two parallel links the capacities add."""
        known = self.edges.get((source, target))
        if known is None:
            self.edges[source, target] = {"bytes_per_s": bytes_per_s, "latency_s": latency_s}
        else:
            known["bytes_per_s"] += bytes_per_s
            known["latency_s"] = max(known["latency_s"], latency_s)

    def join(self, a: str, b: str, bytes_per_s: float, latency_s: float) -> None:
        """Add both directions of a link."""
        self.add_edge(a, b, bytes_per_s, latency_s)
        self.add_edge(b, a, bytes_per_s, latency_s)

    def devices(self) -> tuple[Device, ...]:
        """Return the devices, in the order they were added."""
        return tuple(
            Device(id=node, **{key: value for key, value in data.items() if key != "kind"})
            for node, data in self.nodes.items()
            if data["kind"] == "device"
        )

    def graph(self) -> networkx.DiGraph[str]:
        """Return the frozen networkx graph."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        graph.add_nodes_from(self.nodes.items())
        graph.add_edges_from((a, b, data) for (a, b), data in self.edges.items())
        frozen: networkx.DiGraph[str] = networkx.freeze(graph)
        return frozen


def device_from(figures: Mapping[str, Any], node: str, device_type: str, host: str) -> Device:
    """Return a device from the figures of its type and overrides."""
    return Device(id=node, type=device_type, host=host, **figures)

"""A cluster as a person, or a program, wants to see it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hexisolve.report.tables import make_table
from hexisolve.units import format_bytes, format_bytes_per_s, format_flop_per_s, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from hexisolve.data.cluster import Cluster, Device

_EFFICIENCIES = (
    "dense_efficiency",
    "attention_forward_efficiency",
    "attention_backward_efficiency",
)


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """JSON form: every device, every directed link, the classes of interchangeable devices."""
    return {
        "name": cluster.name,
        "devices": [
            asdict(device)
            | {
                "dense_flop_per_s": device.dense_flop_per_s,
                "sources": efficiency_sources(device),
            }
            for device in cluster.devices
        ],
        "links": [
            {
                "source": source,
                "target": target,
                "bytes_per_s": edge["bytes_per_s"],
                "latency_s": edge["latency_s"],
            }
            for source, target, edge in cluster.graph.edges(data=True)
        ],
        "classes": [list(ids) for ids in cluster.device_classes],
        "host_classes": [list(ids) for ids in cluster.host_classes],
    }


def cluster_tables(cluster: Cluster) -> list[Table]:
    """Kinds of devices, their efficiencies with sources, kinds of links."""
    return [_kinds(cluster), _efficiencies(cluster), _links(cluster)]


def efficiency_sources(device: Device) -> dict[str, str]:
    """Where each efficiency comes from: the catalogue's source, or the cluster file."""
    from hexisolve.data.catalogue import load_catalogue

    known = load_catalogue().get(device.type)
    sources = {}
    for name in _EFFICIENCIES:
        is_default = known is not None and getattr(known, name) == getattr(device, name)
        sources[name] = known.sources.get(name, "") if known and is_default else "the cluster file"
    return sources


def _kinds(cluster: Cluster) -> Table:
    table = make_table(
        f"cluster {cluster.name}: {len(cluster.devices)} devices on {len(cluster.hosts())} hosts",
        ["type", "devices>", "hosts>", "memory>", "dense peak>", "memory bandwidth>", "dtypes~"],
    )
    classes = Counter(_figures(device) for device in cluster.devices)
    hosts: dict[tuple[Any, ...], set[str]] = {}
    for device in cluster.devices:
        hosts.setdefault(_figures(device), set()).add(device.host)
    for key, count in classes.items():
        kind, memory_bytes, peak, bandwidth, dtypes = key
        table.add_row(
            kind, str(count), str(len(hosts[key])), format_bytes(memory_bytes),
            format_flop_per_s(peak), format_bytes_per_s(bandwidth), " ".join(dtypes),
        )  # fmt: skip
    table.caption = (
        f"{len(cluster.device_classes)} classes of interchangeable devices,"
        f" {len(cluster.host_classes)} of hosts"
    )
    return table


def _figures(device: Device) -> tuple[Any, ...]:
    return (
        device.type, device.memory_bytes, device.dense_peak_flop_per_s,
        device.memory_bytes_per_s, device.dtypes,
    )  # fmt: skip


def _efficiencies(cluster: Cluster) -> Table:
    table = make_table(
        "share of the peak that is reached",
        ["type", "dense>", "attention forward>", "attention backward>", "source~"],
    )
    seen = set()
    for device in cluster.devices:
        values = tuple(getattr(device, name) for name in _EFFICIENCIES)
        if (device.type, values) in seen:
            continue
        seen.add((device.type, values))
        sources = sorted(set(efficiency_sources(device).values()))
        table.add_row(device.type, *(f"{value:g}" for value in values), "; ".join(sources))
    return table


def _links(cluster: Cluster) -> Table:
    table = make_table(
        "links, one direction each", ["from", "to", "number>", "bandwidth>", "latency>"]
    )
    kinds = Counter(
        (
            _node_kind(cluster, source),
            _node_kind(cluster, target),
            edge["bytes_per_s"],
            edge["latency_s"],
        )
        for source, target, edge in cluster.graph.edges(data=True)
    )
    for (source, target, bytes_per_s, latency_s), count in kinds.items():
        table.add_row(
            source, target, str(count), format_bytes_per_s(bytes_per_s), format_seconds(latency_s)
        )
    return table


def _node_kind(cluster: Cluster, node: str) -> str:
    kind = str(cluster.graph.nodes[node].get("kind", "node"))
    return cluster.device(node).type if kind == "device" else kind

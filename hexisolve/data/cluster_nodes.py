"""The sections ``nodes`` and ``edges``: a cluster given one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexisolve.data.catalogue import DEFAULT_EFFICIENCIES, DeviceType, read_figures
from hexisolve.data.cluster_graph import GraphBuilder, device_from, read_bandwidth, read_latency
from hexisolve.data.cluster_hosts import type_figures
from hexisolve.data.reading import nearest

NODE_KINDS = ("device", "switch", "nic", "host")
_FIGURE_KEYS = ("memory", "dense_peak", "memory_bandwidth", *DEFAULT_EFFICIENCIES, "dtypes")
# The unit may stand in the key instead of beside the number.
_SI_KEYS = {
    "memory_bytes": ("memory", "B"),
    "dense_peak_flop_per_s": ("dense_peak", "FLOP/s"),
    "memory_bytes_per_s": ("memory_bandwidth", "B/s"),
}
NODE_KEYS = ("id", "kind", "type", "host", "fabric", *_FIGURE_KEYS, *_SI_KEYS)
EDGE_KEYS = ("source", "target", "bandwidth", "latency", "bytes_per_s", "latency_s", "both")


def add_nodes(value: object, types: Mapping[str, DeviceType], build: GraphBuilder) -> None:
    """Add the nodes of the section ``nodes``."""
    fields = build.fields
    for index, entry in enumerate(fields.items(value, "nodes")):
        where = f"nodes[{index}]"
        document = fields.mapping(entry, where, NODE_KEYS)
        node = fields.text(document.get("id"), f"{where}.id")
        kind = fields.choice(document.get("kind", "device"), f"{where}.kind", NODE_KINDS)
        host = document.get("host")
        if kind == "device":
            _add_device(node, document, where, types, build)
            continue
        extra: dict[str, Any] = {} if host is None else {"host": str(host)}
        if "fabric" in document:
            extra["fabric"] = str(document["fabric"])
        build.add_node(node, kind, where, **extra)


def _add_device(
    node: str,
    document: Mapping[str, Any],
    where: str,
    types: Mapping[str, DeviceType],
    build: GraphBuilder,
) -> None:
    fields = build.fields
    type_name = fields.text(document.get("type"), f"{where}.type")
    host = str(document.get("host", node))
    figures: dict[str, Any] = {}
    if type_name in types:
        figures = type_figures(types[type_name])
    figures |= read_figures(_with_units(document, where, build), where, fields)
    if type_name in types or gives_all_figures(document):
        build.add_device(device_from(figures, node, type_name, host), where)


def gives_all_figures(document: Mapping[str, Any]) -> bool:
    """Whether a device node says everything itself, so that its type is only a label."""
    si_keys = {plain: key for key, (plain, _) in _SI_KEYS.items()}
    return all(key in document or si_keys.get(key) in document for key in _FIGURE_KEYS)


def _with_units(document: Mapping[str, Any], where: str, build: GraphBuilder) -> dict[str, Any]:
    """Figures as text with units, whichever way the document gives them."""
    figures = {key: document[key] for key in _FIGURE_KEYS if key in document}
    for key, (plain, unit) in _SI_KEYS.items():
        if key not in document:
            continue
        value = document[key]
        if plain in figures:
            build.fields.problem(f"{where}.{key}", value, f"is given beside `{plain}`")
        if isinstance(value, bool) or not isinstance(value, int | float):
            build.fields.problem(f"{where}.{key}", value, "must be a number")
            continue
        figures[plain] = f"{value!r} {unit}"
    return figures


def add_edges(value: object, build: GraphBuilder, *, check_ends: bool = True) -> None:
    """Add the edges of the section ``edges``; ``both: true`` adds the two directions.

    `check_ends` is off when nodes are missing because of other problems.
    """
    fields = build.fields
    for index, entry in enumerate(fields.items(value, "edges")):
        where = f"edges[{index}]"
        document = fields.mapping(entry, where, EDGE_KEYS)
        ends = [fields.text(document.get(end), f"{where}.{end}") for end in ("source", "target")]
        for end, node in zip(("source", "target"), ends, strict=True):
            if check_ends and node not in build.nodes and document.get(end) is not None:
                fields.problem(f"{where}.{end}", node, "is no node of this file",
                               nearest(node, build.nodes))  # fmt: skip
        if ends[0] == ends[1]:
            fields.problem(where, ends[0], "joins a node to itself")
        bandwidth = _one_of(document, "bandwidth", "bytes_per_s", "B/s", where, build)
        bytes_per_s = read_bandwidth(bandwidth, f"{where}.bandwidth", fields)
        latency = _one_of(document, "latency", "latency_s", "s", where, build)
        latency_s = 0.0 if latency is None else read_latency(latency, f"{where}.latency", fields)
        both = "both" in document and fields.flag(document["both"], f"{where}.both")
        for source, target in [tuple(ends), tuple(reversed(ends))][: 2 if both else 1]:
            if (source, target) in build.edges:
                fields.problem(where, f"{source} -> {target}", "is given twice",
                               "keep one; for parallel links give the sum")  # fmt: skip
                continue
            build.add_edge(source, target, bytes_per_s, latency_s)


def _one_of(
    document: Mapping[str, Any], text_key: str, si_key: str, unit: str, where: str,
    build: GraphBuilder,
) -> object:  # fmt: skip
    """Read the quantity as text, from the key with a unit beside it or the one with it inside."""
    if si_key not in document:
        return document.get(text_key)
    if text_key in document:
        build.fields.problem(f"{where}.{si_key}", document[si_key], f"is given beside `{text_key}`")
    value = document[si_key]
    if isinstance(value, bool) or not isinstance(value, int | float):
        build.fields.problem(f"{where}.{si_key}", value, "must be a number")
        return "1 GB/s" if text_key == "bandwidth" else "0 s"
    return f"{value!r} {unit}"

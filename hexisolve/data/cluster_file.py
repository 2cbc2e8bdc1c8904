"""Cluster documents to graphs and back: YAML, parsed mappings, node-link JSON."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hexisolve.data.catalogue import (
    DeviceType,
    load_catalogue,
    match_accelerator,
    read_device_type,
    read_figures,
)
from hexisolve.data.cluster import Cluster, Device
from hexisolve.data.cluster_fabrics import add_core_switches, read_fabrics
from hexisolve.data.cluster_graph import MAX_DEVICES, GraphBuilder, read_bandwidth
from hexisolve.data.cluster_hosts import OVERRIDE_KEYS, HostGroup, add_host, read_host_group
from hexisolve.data.cluster_nodes import add_edges, add_nodes, gives_all_figures
from hexisolve.data.library import resolve_path
from hexisolve.data.reading import Fields, nearest, read_document
from hexisolve.errors import InstanceError
from hexisolve.units import format_flop_per_s

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
CLUSTER_KEYS = (
    "schema_version", "name", "description", "device_types", "fabrics", "core_switches", "hosts",
    "overrides", "nodes", "edges",
)  # fmt: skip
# What networkx writes beside nodes and links.
_NODE_LINK_KEYS = frozenset({"directed", "multigraph", "graph", "links"})
_PEAK_TOLERANCE = 0.3


def read_cluster(name_or_path: str | Path) -> Cluster:
    """Read a bundled cluster by name, or a YAML or node-link JSON file.

    Raises
    ------
    InstanceError
        With every problem of the file.
    """
    path = resolve_path("clusters", name_or_path)
    document = read_document(path)
    document.setdefault("name", path.stem)
    return cluster_from_dict(document, str(path))


def cluster_from_dict(document: Mapping[str, Any], file: str | None = None) -> Cluster:
    """Build a cluster from a parsed document (or node-link data).

    Raises
    ------
    InstanceError
        With every problem found.
    """
    fields = Fields(file)
    if not isinstance(document, Mapping):
        raise InstanceError.single("cluster", document, "must be a mapping", "", file)
    if _NODE_LINK_KEYS & document.keys():
        document = _from_node_link(document, fields)
    document = fields.mapping(document, "", CLUSTER_KEYS)
    version = document.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION or isinstance(version, bool):
        fields.problem("schema_version", version, "is not known", f"write {SCHEMA_VERSION}")
    name = fields.text(document.get("name", "cluster"), "name")
    types = _read_types(document, fields)
    build = GraphBuilder(fields)
    _add_hosts(document, types, build)
    add_nodes(document.get("nodes", []), types, build)
    add_edges(document.get("edges", []), build, check_ends=not fields.problems)
    devices = build.devices()
    is_empty = not document.get("hosts") and not document.get("nodes")
    if is_empty or not (devices or fields.problems):
        fields.problem("hosts", None, "the cluster has no devices", "give at least one host")
    fields.finish()
    _warn(fields, devices)
    return Cluster(name, build.graph(), devices, _normalised(document, name, types))


def _read_types(document: Mapping[str, Any], fields: Fields) -> dict[str, DeviceType]:
    """Every device type the document uses: its own, and those of the catalogue."""
    types: dict[str, DeviceType] = {}
    for name, entry in fields.mapping(document.get("device_types", {}), "device_types").items():
        where = f"device_types.{name}"
        base = load_catalogue().get(name)
        like = entry.get("like") if isinstance(entry, Mapping) else None
        if like is not None:
            base = _catalogue_type(str(like), f"{where}.like", fields)
        types[name] = read_device_type(name, entry, where, fields, base)
    for name, where in _used_types(document):
        if name not in types:
            found = _catalogue_type(name, where, fields)
            if found is not None:
                types[name] = found
    return types


def _used_types(document: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    hosts = document.get("hosts")
    for group, host in hosts.items() if isinstance(hosts, Mapping) else ():
        devices = host.get("devices") if isinstance(host, Mapping) else None
        for entry in devices if isinstance(devices, list) else [devices]:
            if isinstance(entry, Mapping) and isinstance(entry.get("type"), str | int):
                yield str(entry["type"]), f"hosts.{group}.devices.type"
    nodes = document.get("nodes")
    for index, node in enumerate(nodes if isinstance(nodes, list) else ()):
        if not isinstance(node, Mapping) or node.get("kind", "device") != "device":
            continue
        if "type" in node and not gives_all_figures(node):
            yield str(node["type"]), f"nodes[{index}].type"


def _catalogue_type(name: str, where: str, fields: Fields) -> DeviceType | None:
    try:
        return match_accelerator(name)
    except InstanceError as error:
        for problem in error.problems:
            known = [entry for entry in fields.problems if entry.value == problem.value]
            if not known:
                fields.problem(where, problem.value, problem.message, problem.remedy)
        return None


def _add_hosts(
    document: Mapping[str, Any], types: Mapping[str, DeviceType], build: GraphBuilder
) -> None:
    fields = build.fields
    fabrics = read_fabrics(document.get("fabrics", {}), fields)
    groups = [
        read_host_group(name, entry, types, fabrics, fields)
        for name, entry in fields.mapping(document.get("hosts", {}), "hosts").items()
    ]
    _read_overrides(document.get("overrides", {}), groups, fields)
    num_devices = sum(group.count * len(group.types) for group in groups)
    if num_devices > MAX_DEVICES:
        fields.problem("hosts", num_devices, f"more than {MAX_DEVICES} devices in all",
                       "correct `count`")  # fmt: skip
        return
    if fields.problems:
        return  # half a graph would only bring follow-up problems
    for group in groups:
        for index in range(group.count):
            add_host(group, index, fabrics, build)
    add_core_switches(document.get("core_switches", {}), fabrics, build)


def _read_overrides(value: object, groups: list[HostGroup], fields: Fields) -> None:
    """Attach each override to its group; ``h100``, ``h100[1]``, ``h100[1].device[3]``.

    The ids ``h100-1`` and ``h100-1.3`` mean the same as the last two.
    """
    pattern = re.compile(
        r"(?P<group>[\w-]+?)(?:\[(?P<a>\d+)\]|-(?P<b>\d+))?(?:\.device\[(?P<c>\d+)\]|\.(?P<d>\d+))?"
    )
    by_name = {group.name: group for group in groups}
    for selector, entry in fields.mapping(value, "overrides").items():
        where = f"overrides.{selector}"
        match = pattern.fullmatch(selector)
        group, host, slot = None, None, None
        if selector in by_name:
            group = by_name[selector]
        elif match is not None:
            group = by_name.get(match["group"])
            host_text, slot_text = match["a"] or match["b"], match["c"] or match["d"]
            host = None if host_text is None else int(host_text)
            slot = None if slot_text is None else int(slot_text)
        if group is None:
            fields.problem(where, selector, "names no host of this file",
                           "write it like h100[1] or h100[1].device[3]; hosts: "
                           + ", ".join(by_name))  # fmt: skip
            continue
        if host is not None and host >= group.count:
            fields.problem(where, selector, f"{group.name} has {group.count} hosts, from 0")
            continue
        if slot is not None and slot >= len(group.types):
            fields.problem(where, selector, f"a host of {group.name} has {len(group.types)}"
                           " devices, from 0")  # fmt: skip
            continue
        figures = fields.mapping(entry, where, OVERRIDE_KEYS)
        read_figures(figures, where, fields)
        for key in ("link_bandwidth", "nic_bandwidth"):
            if key in figures:
                read_bandwidth(figures[key], f"{where}.{key}", fields)
        if slot is not None and "nic_bandwidth" in figures:
            fields.problem(f"{where}.nic_bandwidth", None, "belongs to a host, not to a device")
        group.overrides.setdefault((host, slot), {}).update(figures)


def _warn(fields: Fields, devices: Iterable[Device]) -> None:
    """Log what is legal but looks wrong: unusual links, peaks far from the known dense ones."""
    where = f"{fields.file}: " if fields.file else ""
    if fields.doubts:
        more = f" (and {len(fields.doubts) - 1} more like it)" if fields.doubts[1:] else ""
        logger.warning("%s%s%s", where, fields.doubts[0], more)
    known = {device.type: _known_alike(device.type) for device in devices}
    pairs = dict.fromkeys((device.type, device.dense_peak_flop_per_s) for device in devices)
    for name, peak in pairs:
        entry = known[name]
        ratio = peak / entry.dense_peak_flop_per_s if entry else 1.0
        if entry is not None and abs(ratio - 1) > _PEAK_TOLERANCE:
            logger.warning(
                "%s%s: peak %s is %.2f times the dense peak of %s (%s); datasheets often print"
                " the figure with sparsity, which training does not reach",
                where, name, format_flop_per_s(peak), ratio, entry.name,
                format_flop_per_s(entry.dense_peak_flop_per_s),
            )  # fmt: skip


def _known_alike(name: str) -> DeviceType | None:
    try:
        return match_accelerator(name)
    except InstanceError:
        return None


def _normalised(
    document: Mapping[str, Any], name: str, types: Mapping[str, DeviceType]
) -> dict[str, Any]:
    """Return the document with its device types spelled out, in a fixed order of sections."""
    result: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "name": name}
    for key in CLUSTER_KEYS[2:]:
        if key == "device_types":
            result[key] = {name: dict(types[name].document) for name in types}
        elif document.get(key):
            result[key] = document[key]
    # Through JSON: plain values and text keys only, nothing shared with the caller.
    plain: dict[str, Any] = json.loads(json.dumps(result, default=str))
    return plain


def _from_node_link(document: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return the explicit form of networkx node-link data (with ``links`` or ``edges``)."""
    if document.get("multigraph"):
        fields.problem(
            "multigraph", True, "parallel edges are not kept", "add up their bytes_per_s"
        )
    both = [key for key in ("links", "edges") if key in document]
    if len(both) == 2:
        fields.problem("links", None, "is given beside `edges`", "keep one of them")
    edges = document.get(both[0], []) if both else []
    result = {key: value for key, value in document.items() if key not in _NODE_LINK_KEYS}
    is_directed = document.get("directed", True) is not False
    result["edges"] = [
        edge if is_directed or not isinstance(edge, Mapping) else {**edge, "both": True}
        for edge in (edges if isinstance(edges, list) else [edges])
    ]
    return result


def node_link(cluster: Cluster) -> dict[str, Any]:
    """Return networkx node-link data with ``links``; `cluster_from_dict` reads it back."""
    nodes = [
        {"id": node} | {key: value for key, value in data.items() if value is not None}
        for node, data in cluster.graph.nodes.items()
    ]
    links = [{"source": a, "target": b} | data for a, b, data in cluster.graph.edges(data=True)]
    plain: dict[str, Any] = json.loads(
        json.dumps({"name": cluster.name, "directed": True, "nodes": nodes, "links": links})
    )
    return plain


def scale_type(cluster: Cluster, device_type: str, factor: float) -> Cluster:
    """Scale the peak of one device type (see `Cluster.with_speed`)."""
    known = {device.type for device in cluster.devices}
    if device_type not in known:
        raise InstanceError.single(
            "type", device_type, "no device has this type", nearest(device_type, known)
        )
    document = node_link(cluster)
    for node in document["nodes"]:
        if node["kind"] == "device" and node["type"] == device_type:
            node["dense_peak_flop_per_s"] *= factor
    return cluster_from_dict(document)


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write the document as YAML, or node-link JSON for a ``.json`` name, all or nothing."""
    path = Path(path)
    if path.suffix == ".json":
        text = json.dumps(node_link(cluster), indent=1) + "\n"
    else:
        text = yaml.safe_dump(
            cluster.to_dict(), sort_keys=False, allow_unicode=True, default_flow_style=None,
            width=100,
        )  # fmt: skip
    _write_whole(path, text)


def _write_whole(path: Path, text: str) -> None:
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InstanceError.single(
            "file", error.strerror, "cannot be written", "check the folder", str(path)
        ) from None
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(temporary, path)

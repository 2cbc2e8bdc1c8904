"""A cluster: devices, and the directed graph of links that joins them.

Nodes of the graph are text ids with a ``kind`` (``device``, ``switch``, ``nic``, ``host``) and,
inside a box, its ``host``; edges carry ``bytes_per_s`` (one direction) and ``latency_s``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexisolve.data.reading import nearest
from hexisolve.errors import InstanceError, Problem

if TYPE_CHECKING:
    import networkx

    from hexisolve.data.cluster_routes import Router

Edge = tuple[str, str]


@dataclass(frozen=True)
class Device:
    """One accelerator.

    Parameters
    ----------
    id, type, host
        Its name in the cluster, its kind, and the box it sits in.
    memory_bytes
        Capacity as the driver reports it.
    dense_peak_flop_per_s
        Dense 16-bit peak (bf16, or fp16 where there is no bf16).
    memory_bytes_per_s
        Bandwidth of its memory.
    dense_efficiency, attention_forward_efficiency, attention_backward_efficiency
        Share of the peak reached by matrix products and by attention.
    dtypes
        Precisions it computes in.
    """

    id: str
    type: str
    host: str
    memory_bytes: int
    dense_peak_flop_per_s: float
    memory_bytes_per_s: float
    dense_efficiency: float
    attention_forward_efficiency: float
    attention_backward_efficiency: float
    dtypes: tuple[str, ...]

    @property
    def dense_flop_per_s(self) -> float:
        """Rate of matrix products: peak x efficiency."""
        return self.dense_peak_flop_per_s * self.dense_efficiency

    @property
    def attention_forward_flop_per_s(self) -> float:
        """Rate of attention forward: peak x efficiency."""
        return self.dense_peak_flop_per_s * self.attention_forward_efficiency

    @property
    def attention_backward_flop_per_s(self) -> float:
        """Rate of attention backward: peak x efficiency."""
        return self.dense_peak_flop_per_s * self.attention_backward_efficiency


@dataclass(frozen=True)
class Route:
    """The way of a flow: its edges in order and the sum of their latencies."""

    edges: tuple[Edge, ...]
    latency_s: float


@dataclass(frozen=True, eq=False)
class Cluster:
    """Devices and links; equal when their documents are equal.

    Parameters
    ----------
    name
        Name for people.
    graph
        Frozen directed graph of devices, switches, NICs and hosts.
    devices
        The devices, in the order of the file.
    document
        The description it was built from, with every device type spelled out.
    """

    name: str
    graph: networkx.DiGraph[str]
    devices: tuple[Device, ...]
    document: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, name_or_path: str | Path) -> Cluster:
        """Read a bundled cluster by name, or a YAML or node-link JSON file.

        Raises
        ------
        InstanceError
            With every problem of the file.
        """
        from hexisolve.data.cluster_file import read_cluster

        return read_cluster(name_or_path)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], file: str | None = None) -> Cluster:
        """Build from a parsed document; raises InstanceError with every problem."""
        from hexisolve.data.cluster_file import cluster_from_dict

        return cluster_from_dict(document, file)

    def to_dict(self) -> dict[str, Any]:
        """Return the document: `from_dict` gives an equal cluster, without the catalogue."""
        return copy.deepcopy(dict(self.document))

    def write(self, path: str | Path) -> None:
        """Write YAML that `read` turns into an equal cluster (JSON for a ``.json`` name)."""
        from hexisolve.data.cluster_file import write_cluster

        write_cluster(self, path)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical document."""
        text = json.dumps(self.document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, {len(self.devices)} devices, {len(self.hosts())} hosts)"

    @cached_property
    def device_index(self) -> Mapping[str, int]:
        """Position of each device id in `devices`."""
        return {device.id: index for index, device in enumerate(self.devices)}

    def device(self, device_id: str) -> Device:
        """Return the device of that id; raises InstanceError naming the nearest ids."""
        index = self.device_index.get(device_id)
        if index is None:
            raise InstanceError.single(
                "device", device_id, f"cluster {self.name!r} has no such device",
                nearest(str(device_id), self.device_index),
            )  # fmt: skip
        return self.devices[index]

    def hosts(self) -> tuple[str, ...]:
        """Ids of the hosts that hold devices, in the order of the file."""
        return tuple(self._host2devices)

    def devices_of(self, host: str) -> tuple[Device, ...]:
        """Devices of one host; raises InstanceError naming the nearest hosts."""
        devices = self._host2devices.get(host)
        if devices is None:
            raise InstanceError.single(
                "host", host, f"cluster {self.name!r} has no such host",
                nearest(str(host), self._host2devices),
            )  # fmt: skip
        return devices

    @cached_property
    def _host2devices(self) -> Mapping[str, tuple[Device, ...]]:
        hosts: dict[str, list[Device]] = {}
        for device in self.devices:
            hosts.setdefault(device.host, []).append(device)
        return {host: tuple(devices) for host, devices in hosts.items()}

    @cached_property
    def router(self) -> Router:
        """The search for routes, prepared for this graph."""
        from hexisolve.data.cluster_routes import Router

        return Router(self.graph)

    @cached_property
    def _searches(self) -> dict[str, list[int]]:
        return {}

    def _find_route(self, source: str, target: str) -> Route | None:
        last_edge = self._searches.get(source)
        if last_edge is None:
            last_edge = self.router.search(self.router.node_index[source])
            self._searches[source] = last_edge
        return self.router.route(source, target, last_edge)

    def route(self, source: str, target: str) -> Route:
        """Return the way from one device to another: fewest hops, then widest, then by name.

        A route passes switches, NICs and hosts, never another device and never a box that is
        neither the source's nor the target's. From a device to itself it is empty.

        Raises
        ------
        InstanceError
            When there is no way, or no such device.
        """
        self.device(source), self.device(target)
        found = self._find_route(source, target)
        if found is None:
            raise InstanceError.single(
                "cluster", f"{source} -> {target}",
                "no fabric, link or core switch joins these two devices",
                "use devices that share a fabric, or join the fabrics under `core_switches`",
            )  # fmt: skip
        return found

    def connected(self, a: str, b: str) -> bool:
        """Whether traffic can flow both ways between two devices."""
        self.device(a), self.device(b)
        return self._find_route(a, b) is not None and self._find_route(b, a) is not None

    def edge_bytes_per_s(self, edge: Edge) -> float:
        """Nominal bytes/s of an edge; oversubscription and contention are already in it."""
        return float(self.graph.edges[edge]["bytes_per_s"])

    @cached_property
    def device_classes(self) -> tuple[tuple[str, ...], ...]:
        """Ids of interchangeable devices, class by class (see `hexisolve.data.symmetry`)."""
        from hexisolve.data.symmetry import device_classes

        return device_classes(self)

    @cached_property
    def host_classes(self) -> tuple[tuple[str, ...], ...]:
        """Ids of interchangeable hosts, class by class (see `hexisolve.data.symmetry`)."""
        from hexisolve.data.symmetry import host_classes

        return host_classes(self)

    def with_speed(self, device_type: str, factor: float) -> Cluster:
        """Return the same cluster with one type's dense and attention rates times `factor`.

        Raises
        ------
        InstanceError
            When no device has that type.
        """
        from hexisolve.data.cluster_file import scale_type

        return scale_type(self, device_type, factor)


def natural_key(text: str) -> tuple[tuple[int, str] | tuple[int, int], ...]:
    """Sort key under which ``gpu10`` comes after ``gpu9``."""
    parts = re.split(r"(\d+)", text)
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in parts if part)


def check_dtype(cluster: Cluster, dtype: str) -> list[Problem]:
    """Problems of training in `dtype` on this cluster: the types that cannot compute in it."""
    lacking: dict[str, Device] = {}
    for device in cluster.devices:
        if dtype not in device.dtypes:
            lacking.setdefault(device.type, device)
    problems = []
    for device_type, device in lacking.items():
        count = sum(entry.type == device_type for entry in cluster.devices)
        usable = [entry for entry in device.dtypes if entry != dtype]
        common = [d for d in usable if all(d in entry.dtypes for entry in cluster.devices)]
        choice = f"write `dtype: {common[0]}`, or " if common else ""
        problems.append(
            Problem(
                "workload.dtype", dtype,
                f"{count} devices of type {device_type} do not compute in {dtype}"
                f" (they have {', '.join(usable)})",
                f"{choice}leave those devices out of the cluster",
            )
        )  # fmt: skip
    return problems

"""Fabrics of a cluster file: the networks that join hosts, and the switches that join networks.

A port of a fabric has an edge to one switch per level. The capacity of that edge is the NIC's
times the level's contention factor (bandwidth between far hosts falls with their number), divided
by the fabric's oversubscription. The widest of the shortest routes is then the lowest level that
two hosts share, and traffic of all levels adds up on the NIC itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hexisolve.data.cluster_graph import MAX_DEVICES, GraphBuilder, read_bandwidth, read_latency
from hexisolve.data.reading import Fields, nearest

FABRIC_KEYS = ("latency", "oversubscription", "levels")
LEVEL_KEYS = ("hosts", "contention", "latency")
CORE_KEYS = ("fabrics", "bandwidth", "latency")
DEFAULT_HOP_LATENCY = "6 us"


@dataclass(frozen=True)
class Level:
    """Switches of one level: hosts under each (None: all), share of the port, latency."""

    num_hosts: int | None
    contention: float
    latency_s: float


@dataclass
class Fabric:
    """One network: its levels from the nearest to the farthest."""

    name: str
    levels: tuple[Level, ...]
    oversubscription: float
    host2position: dict[str, int] = field(default_factory=dict)

    def attach(self, nic: str, host: str, bytes_per_s: float, build: GraphBuilder) -> None:
        """Join a NIC to the switch of each level that its host is under."""
        position = self.host2position.setdefault(host, len(self.host2position))
        for number, level in enumerate(self.levels):
            switch = self.name
            if level.num_hosts is not None:
                switch = f"{self.name}.level{number}.{position // level.num_hosts}"
            if switch not in build.nodes:
                build.add_node(switch, "switch", f"fabrics.{self.name}", fabric=self.name)
            capacity = bytes_per_s * level.contention / self.oversubscription
            build.join(nic, switch, capacity, level.latency_s / 2)


def read_fabrics(value: object, fields: Fields) -> dict[str, Fabric]:
    """Read the section ``fabrics``."""
    return {
        name: _read_fabric(name, entry, fields)
        for name, entry in fields.mapping(value, "fabrics").items()
    }


def check_switch_name(name: str, where: str, fields: Fields) -> None:
    """Refuse names that could be ids of something in a host."""
    if not re.fullmatch(r"[\w-]+", name):
        fields.problem(where, name, "must be letters, digits, - or _", "rename it")


def _read_fabric(name: str, value: object, fields: Fields) -> Fabric:
    where = f"fabrics.{name}"
    check_switch_name(name, where, fields)
    document = fields.mapping({} if value is None else value, where, FABRIC_KEYS)
    latency_s = read_latency(
        document.get("latency", DEFAULT_HOP_LATENCY), f"{where}.latency", fields
    )
    oversubscription = fields.number(
        document.get("oversubscription", 1), f"{where}.oversubscription",
        low=1.0, high=1000.0, low_allowed=True,
    )  # fmt: skip
    levels = []
    for index, entry in enumerate(fields.items(document.get("levels", []), f"{where}.levels")):
        levels.append(_read_level(entry, f"{where}.levels[{index}]", latency_s, fields))
    sizes = [level.num_hosts or MAX_DEVICES for level in levels]
    if sizes != sorted(set(sizes)):
        fields.problem(f"{where}.levels", sizes, "must grow in `hosts` from level to level",
                       "leave `hosts` out of the last level only")  # fmt: skip
    if not levels or levels[-1].num_hosts is not None:
        last = levels[-1] if levels else Level(None, 1.0, latency_s)
        levels.append(Level(None, last.contention, last.latency_s))
    return Fabric(name, tuple(levels), oversubscription)


def _read_level(value: object, where: str, latency_s: float, fields: Fields) -> Level:
    document = fields.mapping(value, where, LEVEL_KEYS)
    hosts = document.get("hosts")
    return Level(
        num_hosts=None if hosts is None else fields.count(hosts, f"{where}.hosts", low=2),
        contention=fields.number(
            document.get("contention", 1), f"{where}.contention", low=0.0, high=1.0
        ),
        latency_s=(
            read_latency(document["latency"], f"{where}.latency", fields)
            if "latency" in document
            else latency_s
        ),
    )


def add_core_switches(value: object, fabrics: Mapping[str, Fabric], build: GraphBuilder) -> None:
    """Add the section ``core_switches``: each joins fabrics at a bandwidth of its own."""
    fields = build.fields
    for name, entry in fields.mapping(value, "core_switches").items():
        where = f"core_switches.{name}"
        check_switch_name(name, where, fields)
        document = fields.mapping(entry, where, CORE_KEYS)
        bytes_per_s = read_bandwidth(document.get("bandwidth"), f"{where}.bandwidth", fields)
        latency = document.get("latency", DEFAULT_HOP_LATENCY)
        latency_s = read_latency(latency, f"{where}.latency", fields)
        joined = [
            str(fabric) for fabric in fields.items(document.get("fabrics"), f"{where}.fabrics")
        ]
        if len(set(joined)) < 2:
            fields.problem(f"{where}.fabrics", joined, "must name two fabrics or more")
        build.add_node(name, "switch", where)
        for fabric in joined:
            if fabric not in fabrics:
                fields.problem(f"{where}.fabrics", fabric, "is not under `fabrics`",
                               nearest(fabric, fabrics))  # fmt: skip
            elif fabric in build.nodes:
                build.join(fabric, name, bytes_per_s, latency_s / 2)

"""Hosts of a cluster file: the devices in a box, its inside, its NICs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hexisolve.data.catalogue import DEFAULT_EFFICIENCIES, LINK_KINDS, DeviceType, read_figures
from hexisolve.data.cluster_fabrics import Fabric
from hexisolve.data.cluster_graph import (
    MAX_DEVICES,
    GraphBuilder,
    device_from,
    read_bandwidth,
    read_latency,
)
from hexisolve.data.reading import Fields, nearest

HOST_KEYS = ("count", "devices", "inside", "nics")
INSIDE_KEYS = ("kind", "bandwidth", "latency", "switches", "between", "bridges")
NIC_KEYS = ("count", "bandwidth", "fabric", "rails", "at")
OVERRIDE_KEYS = (
    "memory", "dense_peak", "memory_bandwidth", *DEFAULT_EFFICIENCIES, "dtypes", "link_bandwidth",
    "nic_bandwidth",
)  # fmt: skip


@dataclass(frozen=True)
class Inside:
    """How the devices of one box are joined.

    ``nvswitch``: one switch. ``pcie``: one or more switches, joined through the host when there
    are several. ``host``: no peer-to-peer, every transfer passes the host.
    """

    kind: str
    bytes_per_s: float
    latency_s: float
    switches: tuple[tuple[int, ...], ...]
    between_bytes_per_s: float
    bridges: tuple[tuple[int, int, float], ...]

    @property
    def has_host_node(self) -> bool:
        """Whether traffic between its devices can pass the host."""
        return self.kind == "host" or len(self.switches) > 1


@dataclass(frozen=True)
class Nics:
    """NICs of one entry: one shared port, or one for each run of devices (rails)."""

    bytes_per_s: float
    fabric: str
    at: str
    num_rails: int


@dataclass
class HostGroup:
    """One entry under ``hosts``, before it is multiplied by its count."""

    name: str
    count: int
    types: list[DeviceType]
    inside: Inside
    nics: list[Nics]
    overrides: dict[tuple[int | None, int | None], dict[str, Any]] = field(default_factory=dict)

    def host(self, index: int) -> str:
        """Id of its host number `index`."""
        return f"{self.name}-{index}"

    def device(self, index: int, slot: int) -> str:
        """Id of the device in one slot of one of its hosts."""
        return f"{self.host(index)}.{slot}"


def read_host_group(
    name: str,
    value: object,
    types: Mapping[str, DeviceType],
    fabrics: Mapping[str, Fabric],
    fields: Fields,
) -> HostGroup:
    """One entry under ``hosts``."""
    where = f"hosts.{name}"
    if not re.fullmatch(r"[\w-]+", name):
        fields.problem(where, name, "must be letters, digits, - or _", "rename the host group")
    document = fields.mapping(value, where, HOST_KEYS)
    count = fields.count(document.get("count", 1), f"{where}.count", high=MAX_DEVICES)
    slots = _read_slots(document.get("devices"), f"{where}.devices", types, fields)
    inside = _read_inside(document.get("inside"), f"{where}.inside", slots, fields)
    entries = document.get("nics", [])
    shared = isinstance(entries, Mapping)
    listed = [entries] if shared else fields.items(entries, f"{where}.nics")
    nics = [
        _read_nics(
            entry, f"{where}.nics" + ("" if shared else f"[{index}]"), fabrics, inside, len(slots),
            fields,
        )
        for index, entry in enumerate(listed)
    ]  # fmt: skip
    return HostGroup(name, count, slots, inside, nics)


def _read_slots(
    value: object, where: str, types: Mapping[str, DeviceType], fields: Fields
) -> list[DeviceType]:
    if value is None:
        fields.problem(where, None, "is missing", "write {type: H100-SXM-80GB, count: 8}")
        return []
    one = isinstance(value, Mapping)
    entries = [value] if one else fields.items(value, where)
    slots: list[DeviceType] = []
    for index, entry in enumerate(entries):
        at = where if one else f"{where}[{index}]"
        document = fields.mapping(entry, at, ("type", "count"))
        count = fields.count(document.get("count", 1), f"{at}.count", high=4096)
        name = document.get("type")
        if name is None:
            fields.problem(f"{at}.type", None, "is missing", "name an accelerator")
        elif not isinstance(name, str | int):
            fields.problem(f"{at}.type", name, "must be a name", "describe it under `device_types`")
        elif str(name) in types:
            slots.extend([types[str(name)]] * count)
    if not entries:
        fields.problem(where, value, "holds no devices", "give at least one")
    return slots


def _read_inside(value: object, where: str, slots: list[DeviceType], fields: Fields) -> Inside:
    default = dict(slots[0].link) if slots else {"kind": "host"}
    document = fields.mapping(value, where, INSIDE_KEYS) if value is not None else default
    kind = fields.choice(document.get("kind", default["kind"]), f"{where}.kind", LINK_KINDS)
    same_kind = kind == default["kind"]
    bandwidth = document.get("bandwidth", default.get("bandwidth") if same_kind else None)
    if bandwidth is None and slots:
        fields.problem(f"{where}.bandwidth", None, "is missing", "give it per device and direction")
    bytes_per_s = read_bandwidth(bandwidth, f"{where}.bandwidth", fields) if bandwidth else 1.0
    latency = document.get("latency", default.get("latency", "3 us"))
    switches = _read_switches(document.get("switches"), where, kind, len(slots), fields)
    between = document.get("between")
    if between is not None and (kind != "pcie" or len(switches) < 2):
        fields.problem(f"{where}.between", between, "needs `kind: pcie` and two switches or more")
    return Inside(
        kind=kind,
        bytes_per_s=bytes_per_s,
        latency_s=read_latency(latency, f"{where}.latency", fields),
        switches=switches,
        between_bytes_per_s=(
            bytes_per_s if between is None else read_bandwidth(between, f"{where}.between", fields)
        ),
        bridges=_read_bridges(document.get("bridges", []), f"{where}.bridges", len(slots), fields),
    )


def _read_switches(
    value: object, where: str, kind: str, num_devices: int, fields: Fields
) -> tuple[tuple[int, ...], ...]:
    everyone = tuple(range(num_devices))
    if kind == "host":
        if value is not None:
            fields.problem(f"{where}.switches", value, "needs `kind: pcie`")
        return ()
    if value is None:
        return (everyone,)
    if kind != "pcie":
        fields.problem(f"{where}.switches", value, "needs `kind: pcie`")
        return (everyone,)
    switches = tuple(
        tuple(
            slot if isinstance(slot, int) and not isinstance(slot, bool) else -1
            for slot in fields.items(entry, f"{where}.switches[{index}]")
        )
        for index, entry in enumerate(fields.items(value, f"{where}.switches"))
    )
    if num_devices and sorted(slot for entry in switches for slot in entry) != list(everyone):
        fields.problem(
            f"{where}.switches", value,
            f"must name each of the devices 0 to {num_devices - 1} exactly once",
        )  # fmt: skip
        return (everyone,)
    return switches


def _read_bridges(
    value: object, where: str, num_devices: int, fields: Fields
) -> tuple[tuple[int, int, float], ...]:
    bridges = []
    for index, entry in enumerate(fields.items(value, where)):
        at = f"{where}[{index}]"
        document = fields.mapping(entry, at, ("devices", "bandwidth"))
        pair = fields.items(document.get("devices"), f"{at}.devices")
        bytes_per_s = read_bandwidth(document.get("bandwidth"), f"{at}.bandwidth", fields)
        valid = [slot for slot in pair if isinstance(slot, int) and 0 <= slot < num_devices]
        if len(valid) != 2 or valid[0] == valid[1] or len(pair) != 2:
            fields.problem(f"{at}.devices", pair, "must name two devices of the host, like [0, 1]")
            continue
        bridges.append((valid[0], valid[1], bytes_per_s))
    return tuple(bridges)


def _read_nics(
    value: object,
    where: str,
    fabrics: Mapping[str, Fabric],
    inside: Inside,
    num_devices: int,
    fields: Fields,
) -> Nics:
    document = fields.mapping(value, where, NIC_KEYS)
    count = fields.count(document.get("count", 1), f"{where}.count", high=4096)
    bytes_per_s = read_bandwidth(document.get("bandwidth"), f"{where}.bandwidth", fields)
    fabric = document.get("fabric", next(iter(fabrics)) if len(fabrics) == 1 else None)
    if fabric is None:
        fields.problem(f"{where}.fabric", None, "is missing", nearest("", fabrics))
    elif str(fabric) not in fabrics:
        fields.problem(f"{where}.fabric", fabric, "is not under `fabrics`",
                       nearest(str(fabric), fabrics))  # fmt: skip
    rails = fields.choice(document.get("rails", "shared"), f"{where}.rails",
                          ("shared", "per-device"))  # fmt: skip
    at = document.get("at")
    if rails == "per-device":
        if num_devices % count:
            fields.problem(f"{where}.count", count, f"must divide the {num_devices} devices")
        if at is not None:
            fields.problem(f"{where}.at", at, "cannot be combined with `rails: per-device`")
        return Nics(bytes_per_s, str(fabric), "", count)
    places = [f"switch{index}" for index in range(len(inside.switches))]
    places += ["host"] if inside.has_host_node else []
    default = "host" if inside.has_host_node else "switch0"
    if at is not None and at not in places and not _is_slot(str(at), num_devices):
        fields.problem(f"{where}.at", at, "is no place in this host",
                       f"use one of {', '.join(places)}, device0, ...")  # fmt: skip
        at = None
    return Nics(bytes_per_s * count, str(fabric), str(at or default), 0)


def _is_slot(place: str, num_devices: int) -> bool:
    match = re.fullmatch(r"device(\d+)", place)
    return match is not None and int(match.group(1)) < num_devices


def add_host(
    group: HostGroup, index: int, fabrics: Mapping[str, Fabric], build: GraphBuilder
) -> None:
    """Add one host of a group to the graph: devices, inside, NICs."""
    fields, inside, host = build.fields, group.inside, group.host(index)
    where = f"hosts.{group.name}"
    half_s = inside.latency_s / 2
    switch_ids = [f"{host}.switch{number}" for number in range(len(inside.switches))]
    port = f"{host}.host"
    slot2attach = dict.fromkeys(range(len(group.types)), port)
    for switch_id, slots in zip(switch_ids, inside.switches, strict=True):
        build.add_node(switch_id, "switch", where, host=host)
        slot2attach |= dict.fromkeys(slots, switch_id)
    if inside.has_host_node:
        build.add_node(port, "host", where, host=host)
        for switch_id in switch_ids:
            build.join(switch_id, port, inside.between_bytes_per_s, 0.0)
    for slot, device_type in enumerate(group.types):
        own = override_of(group, index, slot)
        figures = type_figures(device_type) | read_figures(own, "overrides", fields)
        device = device_from(figures, group.device(index, slot), device_type.name, host)
        build.add_device(device, where)
        bytes_per_s = inside.bytes_per_s
        if "link_bandwidth" in own:
            bytes_per_s = read_bandwidth(own["link_bandwidth"], "overrides.link_bandwidth", fields)
        build.join(device.id, slot2attach[slot], bytes_per_s, half_s)
    for first, second, bytes_per_s in inside.bridges:
        a, b = group.device(index, first), group.device(index, second)
        build.join(a, b, bytes_per_s, inside.latency_s)
    _add_nics(group, index, half_s, fabrics, build)


def _add_nics(
    group: HostGroup,
    index: int,
    half_s: float,
    fabrics: Mapping[str, Fabric],
    build: GraphBuilder,
) -> None:
    host, where = group.host(index), f"hosts.{group.name}.nics"
    own = override_of(group, index, None)
    number = 0
    for nics in group.nics:
        bytes_per_s = nics.bytes_per_s
        if "nic_bandwidth" in own:
            bytes_per_s = read_bandwidth(
                own["nic_bandwidth"], "overrides.nic_bandwidth", build.fields
            )
        slots_per_rail = len(group.types) // nics.num_rails if nics.num_rails else 0
        for rail in range(max(1, nics.num_rails)):
            nic = f"{host}.nic{number}"
            number += 1
            build.add_node(nic, "nic", where, host=host)
            if nics.num_rails:
                for slot in range(rail * slots_per_rail, (rail + 1) * slots_per_rail):
                    build.join(group.device(index, slot), nic, bytes_per_s, half_s)
            elif nics.at.startswith("device"):
                slot = int(nics.at.removeprefix("device"))
                build.join(group.device(index, slot), nic, bytes_per_s, half_s)
            else:
                build.join(f"{host}.{nics.at}", nic, bytes_per_s, 0.0)
            fabric = fabrics.get(nics.fabric)
            if fabric is not None:
                fabric.attach(nic, host, bytes_per_s, build)


def override_of(group: HostGroup, index: int, slot: int | None) -> dict[str, Any]:
    """Merge the overrides of one device (or host): the special replace the general."""
    merged: dict[str, Any] = {}
    for key in dict.fromkeys([(None, None), (index, None), (None, slot), (index, slot)]):
        merged |= group.overrides.get(key, {})
    return merged


def type_figures(device_type: DeviceType) -> dict[str, Any]:
    """Return the fields of a `Device` that its type determines."""
    return {
        "memory_bytes": device_type.memory_bytes,
        "dense_peak_flop_per_s": device_type.dense_peak_flop_per_s,
        "memory_bytes_per_s": device_type.memory_bytes_per_s,
        "dense_efficiency": device_type.dense_efficiency,
        "attention_forward_efficiency": device_type.attention_forward_efficiency,
        "attention_backward_efficiency": device_type.attention_backward_efficiency,
        "dtypes": device_type.dtypes,
    }

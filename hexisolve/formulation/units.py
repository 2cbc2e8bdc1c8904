"""Units: the pieces of a cluster that a stage takes whole (docs/plan-space.md).

On clusters of at most 8 devices a unit is a device; otherwise half a host, a host, or some
interchangeable hosts together, the finest for which the ways to use units stay few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hexisolve.data.cluster import Cluster

MAX_SINGLE_DEVICES = 8
_MAX_HALF_STATES = 60
_MAX_STATES = 700


@dataclass(frozen=True)
class UnitClass:
    """Units that can be exchanged for one another.

    Parameters
    ----------
    units
        Device ids of every unit.
    """

    units: tuple[tuple[str, ...], ...]

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.units)


def unit_classes(cluster: Cluster) -> tuple[UnitClass, ...]:
    """The units of a cluster, class by class, in the order of its file."""
    if len(cluster.devices) <= MAX_SINGLE_DEVICES:
        return _singles(cluster)
    halves = _halves(cluster)
    if _num_states(halves) <= _MAX_HALF_STATES:
        return halves
    hosts = 1
    while True:
        classes = _host_bundles(cluster, hosts)
        if _num_states(classes) <= _MAX_STATES or all(entry.count == 1 for entry in classes):
            return classes
        hosts *= 2


def connected_parts(cluster: Cluster, dtype: str) -> tuple[frozenset[str], ...]:
    """Sets of devices that compute in the dtype and all reach one another, the largest first.

    No plan spans two of them.
    """
    parts: list[set[str]] = []
    for device in cluster.devices:
        if dtype not in device.dtypes:
            continue
        home = next(
            (part for part in parts if cluster.connected(next(iter(part)), device.id)), None
        )
        if home is None:
            parts.append({device.id})
        else:
            home.add(device.id)
    return tuple(frozenset(part) for part in sorted(parts, key=len, reverse=True))


def devices_of(classes: Sequence[UnitClass], counts: Sequence[int]) -> tuple[str, ...]:
    """Devices of the first `counts` units of every class."""
    return tuple(
        device
        for entry, count in zip(classes, counts, strict=True)
        for unit in entry.units[:count]
        for device in unit
    )


def _num_states(classes: Sequence[UnitClass]) -> int:
    product = 1
    for entry in classes:
        product *= entry.count + 1
    return product


def _singles(cluster: Cluster) -> tuple[UnitClass, ...]:
    """Interchangeable devices of one host form a class."""
    classes = []
    for host in cluster.hosts():
        own = {device.id for device in cluster.devices_of(host)}
        for members in cluster.device_classes:
            inside = tuple((device,) for device in members if device in own)
            if inside:
                classes.append(UnitClass(inside))
    return tuple(classes)


def _halves(cluster: Cluster) -> tuple[UnitClass, ...]:
    """The first and the second half of every host; one class when they look alike."""
    device2class = {d: idx for idx, members in enumerate(cluster.device_classes) for d in members}
    classes = []
    for host in cluster.hosts():
        ids = tuple(device.id for device in cluster.devices_of(host))
        if len(ids) == 1:
            classes.append(UnitClass((ids,)))
            continue
        middle = len(ids) // 2
        first, second = ids[:middle], ids[middle:]
        if [device2class[d] for d in first] == [device2class[d] for d in second]:
            classes.append(UnitClass((first, second)))
        else:
            classes += [UnitClass((first,)), UnitClass((second,))]
    return tuple(classes)


def _host_bundles(cluster: Cluster, num_hosts: int) -> tuple[UnitClass, ...]:
    """`num_hosts` interchangeable hosts per unit; what is left over forms a unit of its own."""
    classes = []
    for members in cluster.host_classes:
        bundles = [
            tuple(
                d.id
                for host in members[first : first + num_hosts]
                for d in cluster.devices_of(host)
            )
            for first in range(0, len(members), num_hosts)
        ]
        full = tuple(b for b in bundles if len(b) == len(bundles[0]))
        classes.append(UnitClass(full))
        classes += [UnitClass((b,)) for b in bundles if len(b) != len(bundles[0])]
    return tuple(classes)

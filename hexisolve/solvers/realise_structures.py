"""Ways to cut a set of devices into a ring of head groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations, product

from hexisolve.data.cluster import Cluster

Group = tuple[str, ...]
Groups = tuple[Group, ...]

# Sets of devices up to this size are cut in every possible way.
MAX_ALL_CUTS = 4
# Up to this many hosts, every partition of the hosts is tried; above, the simplest ones.
MAX_HOST_PARTITIONS = 4


def structures(
    cluster: Cluster, devices: Sequence[str], *, all_ranks: bool = False
) -> tuple[Groups, ...]:
    """Candidate rings of head groups over all `devices`, in ring order.

    Small sets are cut in every way. Larger ones: single ranks; hosts, PCIe switches and runs of
    2, 4, 8, ... inside hosts; hosts merged into groups, whole or by position (the first 1, 2, 4,
    ... devices of each host, the next ones, ...). Groups follow the order of the hosts, so the
    ring crosses every host's port once.

    Parameters
    ----------
    all_ranks
        For small sets: every order of the ranks inside the groups, too.
    """
    if len(devices) <= MAX_ALL_CUTS:
        rings = [order for parts in partitions(tuple(devices)) for order in orders(parts)]
        if all_ranks:
            rings = [ring for groups in rings for ring in product(*map(permutations, groups))]
        return tuple(rings)
    hosts: dict[str, list[str]] = {}
    for device in devices:
        hosts.setdefault(cluster.device(device).host, []).append(device)
    boxes = [tuple(members) for members in hosts.values()]
    found: dict[Groups, None] = {}
    for parts in _host_partitions(boxes):
        found[tuple(_joined(part) for part in parts)] = None
        smallest = min((min(map(len, part)) for part in parts if len(part) > 1), default=0)
        size = 1
        while size < smallest:
            found[tuple(g for part in parts for g in _by_position(part, size))] = None
            size *= 2
    size = 1
    while size < max(map(len, boxes)):
        found[tuple(run for box in boxes for run in _runs(box, size))] = None
        size *= 2
    found[tuple(part for box in boxes for part in _switches(cluster, box))] = None
    return tuple(found)


def orders(groups: Groups) -> Iterator[Groups]:
    """Every order of a ring; turning it is no change."""
    for rest in permutations(groups[1:]):
        yield (groups[0], *rest)


def partitions(items: tuple[str, ...]) -> Iterator[Groups]:
    """Every partition of `items` into non-empty groups, items in their order.

    >>> len(list(partitions(("a", "b", "c", "d"))))
    15
    """
    if not items:
        yield ()
        return
    for rest in partitions(items[1:]):
        yield ((items[0],), *rest)
        for idx, group in enumerate(rest):
            yield (*rest[:idx], (items[0], *group), *rest[idx + 1 :])


def _host_partitions(boxes: Sequence[Group]) -> Iterator[tuple[tuple[Group, ...], ...]]:
    """Hosts that stay alone or join others."""
    if len(boxes) > MAX_HOST_PARTITIONS:
        yield tuple((box,) for box in boxes)
        yield (tuple(boxes),)
        yield tuple(tuple(boxes[idx : idx + 2]) for idx in range(0, len(boxes), 2))
        return
    first2box = {box[0]: box for box in boxes}
    for parts in partitions(tuple(first2box)):
        yield tuple(tuple(first2box[name] for name in part) for part in parts)


def _joined(boxes: tuple[Group, ...]) -> Group:
    return tuple(device for box in boxes for device in box)


def _by_position(boxes: tuple[Group, ...], size: int) -> Iterator[Group]:
    """One group for every `size` positions in a box, of the devices that stand there."""
    if len(boxes) == 1:
        yield boxes[0]
        return
    for first in range(0, max(map(len, boxes)), size):
        yield tuple(device for box in boxes for device in box[first : first + size])


def _runs(box: Group, size: int) -> Iterator[Group]:
    for first in range(0, len(box), size):
        yield box[first : first + size]


def _switches(cluster: Cluster, box: Group) -> list[Group]:
    """Devices of a box that are nearest to each other: one PCIe switch, one bridge."""
    hops = {(a, b): len(cluster.route(a, b).edges) for i, a in enumerate(box) for b in box[i + 1 :]}
    nearest = min(hops.values(), default=0)
    parts: list[list[str]] = []
    for device in box:
        for part in parts:
            if hops[part[0], device] == nearest:
                part.append(device)
                break
        else:
            parts.append([device])
    return [tuple(part) for part in parts]

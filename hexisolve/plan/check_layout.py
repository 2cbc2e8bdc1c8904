"""Rules of the layout: layers, devices, heads, shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from hexisolve.cost.communication import flow_network
from hexisolve.data.instance import Instance
from hexisolve.data.model_spec import LayerSpec
from hexisolve.data.reading import nearest
from hexisolve.data.workload import ZERO_MODES
from hexisolve.plan.pieces import split_tokens
from hexisolve.plan.plan import HeadGroup, Layout, Replica, Stage
from hexisolve.plan.violation import Violation, is_whole

_NUM_SHOWN = 4


def check_layout(instance: Instance, layout: Layout) -> Iterator[Violation]:
    """Every violation of a layout."""
    if not layout.replicas:
        yield Violation("replicas", "layout", "has no replica; give at least one")
    for replica_idx, replica in enumerate(layout.replicas):
        yield from _layers(instance, replica_idx, replica)
        for stage_idx, stage in enumerate(replica.stages):
            where = f"replica {replica_idx}, stage {stage_idx}"
            yield from _stage(instance, where, stage)
    yield from _devices(instance, layout)


def _layers(instance: Instance, replica_idx: int, replica: Replica) -> Iterator[Violation]:
    """Every layer in exactly one stage, in order; no stage without a layer."""
    num_layers = instance.model.num_layers
    where = f"replica {replica_idx}"
    num_stages = len(replica.stages)
    if not num_stages:
        yield Violation("replicas", where, "has no stage; give at least one")
        return
    if num_stages > num_layers:
        message = f"{num_stages} stages share {num_layers} layers; use at most {num_layers} stages"
        yield Violation("stage-count", where, message)
    expected = 0
    for stage_idx, stage in enumerate(replica.stages):
        place = f"{where}, stage {stage_idx}"
        if len(stage.layers) != 2 or not all(is_whole(bound) for bound in stage.layers):
            yield Violation("layers", place, f"layers {stage.layers} are no range start..stop")
            return
        start, stop = stage.layers
        if stop <= start:
            message = f"layers {start}..{stop} are none; give the stage at least one layer"
            yield Violation("empty-stage", place, message)
        if start != expected:
            kind = "repeats" if start < expected else "leaves out"
            between = sorted((start, expected))
            message = (
                f"starts at layer {start} and {kind} layers {between[0]}..{between[1]}; "
                f"start at {expected}"
            )
            yield Violation("layers", place, message)
        expected = max(stop, start)
    if expected != num_layers:
        message = f"ends at layer {expected}, the model has {num_layers}; end at {num_layers}"
        yield Violation("layers", f"{where}, stage {num_stages - 1}", message)


def _stage(instance: Instance, where: str, stage: Stage) -> Iterator[Violation]:
    allowed = instance.workload.zero
    if stage.zero not in ZERO_MODES:
        yield Violation("zero", where, f"ZeRO mode {stage.zero!r} is unknown; use 0, 1 or 3")
    elif stage.zero not in allowed:
        message = f"ZeRO-{stage.zero} is not allowed by the workload; use one of {list(allowed)}"
        yield Violation("zero", where, message)
    if stage.zero3_gradients not in ("step", "chunk"):
        message = f"gradients reduced per {stage.zero3_gradients!r}; write 'step' or 'chunk'"
        yield Violation("zero3-gradients", where, message)
    if stage.ring_kind not in ("kv", "q"):
        message = f"{stage.ring_kind!r} cannot travel around the ring; write 'kv' or 'q'"
        yield Violation("ring-kind", where, message)
    if not stage.ring or not all(group.ranks for group in stage.ring):
        message = "a ring needs at least one head group, and every group at least one rank"
        yield Violation("ring", where, message)
        return
    yield from _weights("tokens", where, "token weights", [r.tokens for r in stage.ranks])
    shares = [rank.state_share for rank in stage.ranks]
    yield from _weights("state-shares", where, "state shares", shares)
    kinds = {layer.attention.num_q_heads for layer in _layers_of(instance, stage)}
    for num_heads in sorted(kinds):
        for group_idx, group in enumerate(stage.ring):
            yield from _heads(f"{where}, group {group_idx}", group, num_heads)


def _layers_of(instance: Instance, stage: Stage) -> Sequence[LayerSpec]:
    """The layers of a stage that exist; all of them when its range is no range."""
    layers = instance.model.layers
    if len(stage.layers) == 2 and all(is_whole(bound) for bound in stage.layers):
        return layers[slice(*stage.layers)] or layers[:1]
    return layers


def _weights(rule: str, where: str, name: str, weights: Sequence[object]) -> Iterator[Violation]:
    if not all(is_whole(weight) for weight in weights):
        yield Violation(rule, where, f"{name} {list(weights)} must be whole numbers of at least 0")
    elif not any(weights):
        yield Violation(rule, where, f"{name} are all 0; give at least one rank a share")


def _heads(where: str, group: HeadGroup, num_heads: int) -> Iterator[Violation]:
    """Every query head on exactly one rank of the group; ranges within 0..H."""
    ranges = [rank.q_heads for rank in group.ranks]
    for rank_idx, heads in enumerate(ranges):
        is_range = len(heads) == 2 and all(is_whole(bound) for bound in heads)
        if not is_range or not heads[0] <= heads[1] <= num_heads:
            message = f"query heads {heads} of rank {rank_idx} are no range within 0..{num_heads}"
            yield Violation("heads", where, f"{message}; nearest: {_nearest(ranges, num_heads)}")
            return
    owners = [0] * num_heads
    for first, stop in ranges:
        for head in range(first, stop):
            owners[head] += 1
    missing = [head for head, count in enumerate(owners) if count == 0]
    shared = [head for head, count in enumerate(owners) if count > 1]
    total = sum(stop - first for first, stop in ranges)
    for faulty, fault in ((missing, "on no rank"), (shared, "on several ranks")):
        if faulty:
            message = (
                f"query heads {_listed(faulty)} are {fault}: the group computes {total} heads, "
                f"the model has {num_heads}; nearest: {_nearest(ranges, num_heads)}"
            )
            yield Violation("heads", where, message)


def _nearest(ranges: Sequence[tuple[int, ...]], num_heads: int) -> str:
    """Legal ranges whose sizes are as close as can be to those given."""
    sizes = [max(r[1] - r[0], 0) if len(r) == 2 and all(map(is_whole, r)) else 1 for r in ranges]
    counts = split_tokens(num_heads, sizes if any(sizes) else [1] * len(sizes))
    bounds, first = [], 0
    for count in counts:
        bounds.append(f"{first}..{first + count}")
        first += count
    return ", ".join(bounds)


def _devices(instance: Instance, layout: Layout) -> Iterator[Violation]:
    """Known devices, each used once, that compute in the dtype and reach one another."""
    cluster, dtype = instance.cluster, instance.workload.dtype
    places: dict[str, str] = {}
    unable: dict[str, list[str]] = {}
    for replica_idx, stage_idx, stage in layout.stages():
        where = f"replica {replica_idx}, stage {stage_idx}"
        for rank in stage.ranks:
            device_id = str(rank.device)
            if device_id not in cluster.device_index:
                message = f"cluster {cluster.name!r} has no device {device_id!r}"
                remedy = nearest(device_id, cluster.device_index)
                yield Violation("devices", where, f"{message}; {remedy}")
                continue
            if device_id in places:
                message = f"device {device_id} is already used in {places[device_id]}"
                yield Violation("device-once", where, f"{message}; use every device at most once")
                continue
            places[device_id] = where
            if dtype not in cluster.device(device_id).dtypes:
                unable.setdefault(cluster.device(device_id).type, []).append(device_id)
    for device_type, devices in unable.items():
        known = ", ".join(cluster.device(devices[0]).dtypes)
        message = f"{_listed(devices)} ({device_type}) cannot compute in {dtype}; they have {known}"
        yield Violation("dtype", "layout", message)
    yield from _connected(instance, places)


def _connected(instance: Instance, places: dict[str, str]) -> Iterator[Violation]:
    network = flow_network(instance.cluster)
    devices = list(places)
    numbers = [instance.cluster.device_index[device_id] for device_id in devices]
    reported: set[str] = set()
    for device_id, number in zip(devices, numbers, strict=True):
        latency_s = network.pair_latency_s([number] * len(numbers), numbers).tolist()
        apart = {d for d, seconds in zip(devices, latency_s, strict=True) if seconds == inf}
        apart -= reported
        if apart and device_id not in reported:
            reported |= apart
            message = (
                f"{device_id} has no way to {_listed(sorted(apart))}; "
                "use devices that share a fabric"
            )
            yield Violation("connected", "layout", message)


def _listed(values: Sequence[object]) -> str:
    """The first few values, and how many more there are."""
    shown = ", ".join(str(value) for value in values[:_NUM_SHOWN])
    more = len(values) - _NUM_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown

"""Layouts of the published splits: every member of a family, unpriced.

A family gets a list of devices and yields layouts with ZeRO-0; `search` chooses ZeRO modes and
recompute and keeps the fastest that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hexisolve.data.cluster import Device
from hexisolve.data.instance import Instance
from hexisolve.plan.pieces import split_tokens
from hexisolve.plan.plan import Layout, Replica, Stage
from hexisolve.solvers.baselines.shapes import (
    Degrees,
    degrees,
    divisors,
    even_counts,
    grid,
    has_uniform_heads,
    one_replica,
    ranges,
    weighted_stage,
)

Family = Callable[[Instance, Sequence[Device]], Iterator[Layout]]


def ring_layouts(instance: Instance, devices: Sequence[Device]) -> Iterator[Layout]:
    """Pure context parallelism: every device a head group of its own, even tokens."""
    for wanted in degrees(len(devices), 1, instance.model.num_layers):
        if wanted.heads == 1:
            yield from even_layouts(instance, devices, wanted)


def ulysses_layouts(instance: Instance, devices: Sequence[Device]) -> Iterator[Layout]:
    """Pure head parallelism: one head group per stage, heads floor / ceil, even tokens."""
    for wanted in degrees(len(devices), 1, instance.model.num_layers):
        if wanted.ring == 1:
            yield from even_layouts(instance, devices, wanted)


def usp_layouts(instance: Instance, devices: Sequence[Device]) -> Iterator[Layout]:
    """Even CP x HP, head groups of neighbours or across them.

    Source: USP (arXiv 2405.07719).
    """
    for wanted in degrees(len(devices), 1, instance.model.num_layers):
        yield from even_layouts(instance, devices, wanted)


def even_4d_layouts(instance: Instance, devices: Sequence[Device]) -> Iterator[Layout]:
    """Even DP x PP x CP x HP: replicas of equal size and shape, the batch floor / ceil."""
    num_sequences = len(instance.workload.sequence_lengths)
    for wanted in degrees(len(devices), num_sequences, instance.model.num_layers):
        yield from even_layouts(instance, devices, wanted)


def even_layouts(
    instance: Instance, devices: Sequence[Device], wanted: Degrees
) -> Iterator[Layout]:
    """The placements of one even factorisation.

    Replicas are runs of neighbours, or every stage is one (data parallel ranks beside each
    other); head groups are neighbours, or the ring is. Equal placements are made once.
    """
    layer_ranges = ranges(even_counts(instance.model.num_layers, wanted.stages))
    if not all(has_uniform_heads(instance, layers) for layers in layer_ranges):
        return
    size = wanted.ring * wanted.heads
    for stages_outside in (False, True) if wanted.replicas > 1 and wanted.stages > 1 else (False,):
        for heads_inside in (True, False) if wanted.ring > 1 and wanted.heads > 1 else (True,):
            replicas: list[list[Stage]] = [[] for _ in range(wanted.replicas)]
            for replica_idx, stages in enumerate(replicas):
                for stage_idx, layers in enumerate(layer_ranges):
                    block = (
                        stage_idx * wanted.replicas + replica_idx
                        if stages_outside
                        else replica_idx * wanted.stages + stage_idx
                    )
                    own = devices[block * size : (block + 1) * size]
                    groups = grid(own, wanted.ring, heads_inside=heads_inside)
                    stages.append(weighted_stage(instance, layers, groups))
            yield Layout(tuple(Replica(tuple(stages)) for stages in replicas))


def proportional_layouts(instance: Instance, devices: Sequence[Device]) -> Iterator[Layout]:
    """Layers, tokens and heads in proportion to dense FLOP/s, whatever the links are."""
    device2weight = speed_weights(devices)
    for num_stages in divisors(len(devices)):
        if num_stages > instance.model.num_layers:
            break
        size = len(devices) // num_stages
        runs = [devices[p * size : (p + 1) * size] for p in range(num_stages)]
        layer_ranges = speed_layers(instance, runs)
        if layer_ranges is None:
            continue
        for num_groups in divisors(size):
            for heads_inside in (True, False) if 1 < num_groups < size else (True,):
                yield one_replica(
                    [
                        weighted_stage(
                            instance, layers,
                            grid(run, num_groups, heads_inside=heads_inside),
                            device2weight, device2weight,
                        )
                        for layers, run in zip(layer_ranges, runs, strict=True)
                    ]
                )  # fmt: skip


def speed_weights(devices: Sequence[Device]) -> dict[str, int]:
    """Whole weights in proportion to dense FLOP/s, the fastest device at 10,000."""
    fastest = max(device.dense_flop_per_s for device in devices)
    return {d.id: max(1, round(10_000 * d.dense_flop_per_s / fastest)) for d in devices}


def speed_layers(
    instance: Instance, runs: Sequence[Sequence[Device]]
) -> tuple[tuple[int, int], ...] | None:
    """Layer ranges in proportion to the FLOP/s of each stage's devices.

    None when a stage would be left without a layer, or with layers of unlike head counts.
    """
    device2weight = speed_weights([device for run in runs for device in run])
    speeds = [sum(device2weight[device.id] for device in run) for run in runs]
    counts = split_tokens(instance.model.num_layers, speeds)
    layer_ranges = ranges(counts)
    if min(counts) == 0 or not all(has_uniform_heads(instance, layers) for layers in layer_ranges):
        return None
    return layer_ranges

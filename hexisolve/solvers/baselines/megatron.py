"""What Megatron-LM's rules give: even TP x CP x PP x DP with every division without remainder.

Tensor parallelism has no place in the plan schema, so this baseline has a price and no plan. It is
priced with the same cost functions as `evaluate`: FLOP, flows on the same links, memory by item,
the longest path through 1F1B, and no edge busier than the step is long.

Source: Megatron-LM's own checks of its arguments (heads, query groups, layers, sequence length and
batch divisible), rank order tp-cp-dp-pp, distributed optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hexisolve.cost.collectives import gather_bytes, optimizer_s, reduce_scatter_bytes
from hexisolve.cost.communication import Flow
from hexisolve.cost.pipeline import step_length_s
from hexisolve.data.cluster import Device
from hexisolve.data.instance import Instance
from hexisolve.plan.schedule import one_f_one_b, parse_operation
from hexisolve.solvers.baselines.megatron_cost import (
    Grid4D,
    MegatronDegrees,
    StageTimes,
    boundary_flows,
    least_recompute,
    pipeline_flows,
    stage_times,
)
from hexisolve.solvers.baselines.shapes import divisors


@dataclass(frozen=True)
class MegatronPrice:
    """The fastest choice that fits, or why there is none."""

    step_time_s: float | None
    reason: str
    one_replica: bool = True


def megatron_degrees(instance: Instance, devices: Sequence[Device]) -> Iterator[MegatronDegrees]:
    """Degrees that satisfy every divisibility rule, tensor groups inside one host."""
    model, lengths = instance.model, instance.workload.sequence_lengths
    num_devices = len(devices)
    for tensor in divisors(num_devices):
        if not _tensor_fits(instance, devices, tensor):
            continue
        for context in divisors(num_devices // tensor):
            # Two pieces per context rank (zig-zag), and sequence parallelism inside each.
            if any(length % (2 * context * tensor) for length in lengths):
                continue
            for pipeline in divisors(num_devices // tensor // context):
                data = num_devices // tensor // context // pipeline
                if model.num_layers % pipeline == 0 and len(lengths) % data == 0:
                    yield MegatronDegrees(tensor, context, pipeline, data)


def _tensor_fits(instance: Instance, devices: Sequence[Device], tensor: int) -> bool:
    is_divisible = all(
        layer.attention.num_q_heads % tensor == 0
        and layer.attention.num_kv_heads % tensor == 0
        and (layer.mlp.intermediate_size % tensor == 0)
        for layer in instance.model.layers
    )
    groups = (devices[first : first + tensor] for first in range(0, len(devices), tensor))
    return is_divisible and all(len({device.host for device in group}) == 1 for group in groups)


def price_megatron(instance: Instance, devices: Sequence[Device]) -> MegatronPrice:
    """Step time of the best degrees and recompute on these devices, in this order."""
    best: MegatronPrice | None = None
    reason = "no degrees satisfy the divisibility rules"
    for degrees in megatron_degrees(instance, devices):
        grid = Grid4D(instance, tuple(devices), degrees)
        recompute = _recompute(grid)
        if recompute is None:
            reason = f"{degrees} and others: do not fit in memory with every layer recomputed"
            continue
        seconds = _step_s(grid, recompute)
        if best is None or best.step_time_s is None or seconds < best.step_time_s:
            words = f"{degrees}, layers recomputed per stage {recompute}"
            best = MegatronPrice(seconds, words, degrees.data == 1)
    return best or MegatronPrice(None, reason)


def _recompute(grid: Grid4D) -> list[int] | None:
    """Fewest layers recomputed on every stage; None when a stage does not fit."""
    lengths = grid.instance.workload.sequence_lengths
    counts = []
    for p in range(grid.degrees.pipeline):
        count = least_recompute(grid, p, max(lengths), len(lengths) // grid.degrees.data)
        if count is None:
            return None
        counts.append(count)
    return counts


def _step_s(grid: Grid4D, recompute: Sequence[int]) -> float:
    """Seconds of a step: slowest pipeline, synchronisation, optimizer; or the busiest edge."""
    d, lengths = grid.degrees, grid.instance.workload.sequence_lengths
    per_replica = len(lengths) // d.data
    rows = tuple(
        tuple(parse_operation(text) for text in row) for row in one_f_one_b(d.pipeline, per_replica)
    )
    pipeline_s = 0.0
    moves: list[tuple[int, list[Flow]]] = []
    for r in range(d.data):
        own = lengths[r * per_replica : (r + 1) * per_replica]
        stages = [stage_times(grid, p, r, own, recompute[p]) for p in range(d.pipeline)]
        pipeline_s = max(pipeline_s, _pipeline_s(grid, r, own, stages, rows))
        moves += pipeline_flows(grid, r, own, recompute)
    end = _step_end(grid)
    moves += [(1, end.scatter), (1, end.gather)]
    total_s = pipeline_s + grid.seconds(end.scatter) + end.optimizer_s + grid.seconds(end.gather)
    return max(total_s, grid.busiest_s(moves))


def _pipeline_s(
    grid: Grid4D,
    r: int,
    lengths: Sequence[int],
    stages: Sequence[StageTimes],
    rows: Sequence[Sequence[tuple[str, int]]],
) -> float:
    """The longest path of one data-parallel pipeline."""
    there, back = [], []
    for p in range(grid.degrees.pipeline - 1):
        forward = {n: boundary_flows(grid, p, r, n, backward=False) for n in set(lengths)}
        backward = {n: boundary_flows(grid, p, r, n, backward=True) for n in set(lengths)}
        there.append([grid.seconds(forward[n]) for n in lengths])
        back.append([grid.seconds(backward[n]) for n in lengths])
    forward_s = [stage.forward_s for stage in stages]
    backward_s = [stage.backward_s for stage in stages]
    return step_length_s(rows, forward_s, backward_s, there, back).makespan_s


class _StepEnd(NamedTuple):
    """Reduce-scatter of gradients, update of the own share, all-gather of weights."""

    scatter: list[Flow]
    gather: list[Flow]
    optimizer_s: float


def _step_end(grid: Grid4D) -> _StepEnd:
    """The distributed optimizer, all stages at once."""
    d, cost = grid.degrees, grid.instance.cost
    share = 1 / (d.data * d.context)
    scatter: list[Flow] = []
    gather: list[Flow] = []
    update_s = 0.0
    for p in range(d.pipeline):
        parameters = round(grid.rank_parameters(p))
        rings = grid.reduction_rings(p)
        scattered = reduce_scatter_bytes(share, parameters, cost.gradient_bytes)
        scatter += grid.ring_flows(rings, scattered)
        gather += grid.ring_flows(rings, gather_bytes(share, parameters, grid.element_bytes))
        slowest = min(device.memory_bytes_per_s for ring in rings for device in ring)
        own = parameters * share
        update_s = max(update_s, optimizer_s(own, slowest, cost.optimizer_traffic_bytes))
    return _StepEnd(scatter, gather, update_s)

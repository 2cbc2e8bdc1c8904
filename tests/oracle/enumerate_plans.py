"""Every legal plan of a tiny instance, one by one: the slow truth.

Written from the rules of `check_plan` and the page docs/plan-space.md. It shares no code with
`hexisolve.formulation` or `hexisolve.solvers`; nothing is pruned but illegal plans.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations, product

from hexisolve.data.instance import Instance
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import (
    BatchPlan,
    Chunk,
    HeadGroup,
    Layout,
    Pipeline,
    Plan,
    Rank,
    Replica,
    ReplicaBatch,
    Slice,
    Stage,
)
from hexisolve.plan.schedule import one_f_one_b


def best_plan(instance: Instance, most_plans: int) -> tuple[float, Plan | None, int] | None:
    """(least step time, its plan, number of plans); None when there are more than `most_plans`."""
    best, kept, seen = float("inf"), None, 0
    for plan in every_plan(instance):
        seen += 1
        if seen > most_plans:
            return None
        step_s = evaluate(instance, plan).step_time_s
        if step_s < best and not check_plan(instance, plan):
            best, kept = step_s, plan
    return best, kept, seen


def every_plan(instance: Instance) -> Iterator[Plan]:
    """All plans of the plan space, legal or too large for memory."""
    devices = [device.id for device in instance.cluster.devices]
    num_layers = instance.model.num_layers
    for count in range(1, len(devices) + 1):
        for used in combinations(devices, count):
            for order in permutations(used):
                for sizes in _sums(count, 1):
                    if len(sizes) > num_layers:
                        continue
                    yield from _plans_on(instance, _cut(order, sizes))


def _plans_on(instance: Instance, parts: list[tuple[str, ...]]) -> Iterator[Plan]:
    """Plans with these devices per stage; the order inside a part is the order of the ranks."""
    num_layers = instance.model.num_layers
    for layers in _sums(num_layers, 1):
        if len(layers) != len(parts):
            continue
        choices, first = [], 0
        for devices, size in zip(parts, layers, strict=True):
            span = (first, first + size)
            choices.append(list(_stages(instance, devices, span)))
            first += size
        for picked in product(*choices):
            yield _plan(instance, [stage for stage, _ in picked], [r for _, r in picked])


def _stages(instance, devices, span):
    size = span[1] - span[0]
    for ring in _rings(instance, devices):
        modes = [(zero, "step") for zero in instance.workload.zero]
        if 3 in instance.workload.zero:
            modes.append((3, "chunk"))
        for zero, gradients in modes:
            stage = Stage(span, ring, "kv", zero, gradients)
            for full in range(size + 1):
                for layer in range(size + 1 - full):
                    counts = {"none": size - full - layer, "layer": layer, "full": full}
                    yield stage, {k: v for k, v in counts.items() if v}


def _rings(instance, devices):
    heads = instance.model.layers[0].attention.num_q_heads
    block = instance.workload.block_tokens
    blocks = max(instance.workload.sequence_lengths) // block
    for sizes in _sums(len(devices), 1):
        groups = _cut(devices, sizes)
        ranges = [list(_head_ranges(heads, len(group))) for group in groups]
        for tokens in _fixed_sums(blocks, len(devices)):
            for picked in product(*ranges):
                weights = iter(tokens)
                yield tuple(
                    HeadGroup(
                        tuple(
                            Rank(device, next(weights) * block, own)
                            for device, own in zip(group, spans, strict=True)
                        )
                    )
                    for group, spans in zip(groups, picked, strict=True)
                )


def _head_ranges(heads, ranks):
    """Every way to cut 0..heads into contiguous ranges, some empty, given to ranks in any order."""
    seen = set()
    for counts in _fixed_sums(heads, ranks):
        for order in permutations(range(ranks)):
            spans, first = [(0, 0)] * ranks, 0
            for rank in order:
                if counts[rank]:
                    spans[rank] = (first, first + counts[rank])
                    first += counts[rank]
            if tuple(spans) not in seen:
                seen.add(tuple(spans))
                yield tuple(spans)


def _plan(instance, stages, recompute):
    lengths = instance.workload.sequence_lengths
    order = sorted(range(len(lengths)), key=lambda idx: (-lengths[idx], idx))
    chunks = tuple(Chunk((Slice(idx, 0, lengths[idx]),)) for idx in order)
    pipeline = Pipeline(
        chunks,
        one_f_one_b(len(stages), len(chunks)),
        tuple((counts,) * len(chunks) for counts in recompute),
    )
    return Plan(Layout((Replica(tuple(stages)),)), BatchPlan((ReplicaBatch((pipeline,)),)))


def _cut(items, sizes):
    parts, first = [], 0
    for size in sizes:
        parts.append(tuple(items[first : first + size]))
        first += size
    return parts


def _sums(total, least):
    """Ordered sums of parts of at least `least`."""
    if total == 0:
        yield ()
    for first in range(least, total + 1):
        for rest in _sums(total - first, least):
            yield (first, *rest)


def _fixed_sums(total, parts):
    """Ordered sums of `parts` numbers of at least 0."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _fixed_sums(total - first, parts - 1):
            yield (first, *rest)

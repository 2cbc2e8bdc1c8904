"""The fastest plan of a family: recompute and ZeRO chosen per stage, layouts tried best first.

A layout's bound is its pipeline without recompute, transfers and synchronisation. Layouts are
opened in the order of their bounds; the search ends when the next bound is no better than the
best price. Only opened layouts are completed and given to `evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from hexisolve.cost.pipeline import bound_any_order_s
from hexisolve.data.instance import Instance
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import (
    BatchPlan,
    Chunk,
    Layout,
    Pipeline,
    Plan,
    Policy,
    Replica,
    ReplicaBatch,
    Slice,
    Stage,
)
from hexisolve.plan.price_book import price_book
from hexisolve.plan.schedule import one_f_one_b
from hexisolve.plan.stage_price import price_stage
from hexisolve.plan.step_memory import MemoryItems, stage_memory
from hexisolve.solvers.baselines.shapes import even_counts, ranges
from hexisolve.units import format_bytes

Recompute = dict[Policy, int]


@dataclass(frozen=True)
class Found:
    """The best plan of a search, or the reason why there is none."""

    plan: Plan | None
    step_time_s: float | None
    reason: str = ""

    def is_better_than(self, other: Found) -> bool:
        """Faster, or a plan where the other has none."""
        if self.step_time_s is None:
            return False
        return other.step_time_s is None or self.step_time_s < other.step_time_s


@dataclass(frozen=True)
class StageChoice:
    """How a stage runs its chunks: the stage with its ZeRO mode, and the policy of its layers."""

    stage: Stage
    recompute: Recompute
    stage_s: float


@dataclass(frozen=True)
class Overflow:
    """The device that is furthest over its memory in the choice that comes nearest to fitting."""

    device: str
    stage_idx: int
    needed_bytes: int
    usable_bytes: int

    @property
    def excess(self) -> float:
        """Needed over usable bytes."""
        return self.needed_bytes / max(self.usable_bytes, 1)

    def __str__(self) -> str:
        return (
            f"stage {self.stage_idx} on {self.device} needs {format_bytes(self.needed_bytes)}, "
            f"has {format_bytes(self.usable_bytes)}"
        )


def best_plan(instance: Instance, layouts: Iterable[Layout]) -> Found:
    """The fastest legal plan over `layouts`, each with its best recompute and ZeRO modes."""
    bounds = sorted(
        ((layout_bound_s(instance, layout), idx, layout) for idx, layout in enumerate(layouts)),
        key=lambda entry: entry[:2],
    )
    best = Found(None, None, "no layout of this family exists for these devices")
    nearest: Overflow | None = None
    for bound_s, _, layout in bounds:
        if best.step_time_s is not None and bound_s >= best.step_time_s:
            break
        completed = complete(instance, layout)
        if isinstance(completed, Overflow):
            if nearest is None or completed.excess < nearest.excess:
                nearest = completed
            continue
        found = Found(completed, evaluate(instance, completed).step_time_s)
        if found.is_better_than(best):
            best = found
    if best.plan is None and nearest is not None:
        return Found(None, None, f"does not fit in memory: {nearest}")
    return best


def layout_bound_s(instance: Instance, layout: Layout) -> float:
    """A step is no shorter: stages without recompute, free transfers, any order."""
    worst = 0.0
    for replica, sequences in zip(
        layout.replicas, replica_sequences(instance, layout), strict=True
    ):
        times: dict[Chunk, list[float]] = {}
        chunks = sequence_chunks(instance, sequences)
        for chunk in {chunk_without_number(chunk) for chunk in chunks}:
            times[chunk] = []
            for stage_idx, stage in enumerate(replica.stages):
                none: Recompute = {"none": stage.num_layers}
                price = price_stage(instance, stage, stage_idx, len(replica.stages), chunk, none)
                times[chunk].append(price.forward_s + price.backward_s)
        counts = dict.fromkeys(times, 0)
        for chunk in chunks:
            counts[chunk_without_number(chunk)] += 1
        if len(times) == 1:
            (stage_s,) = times.values()
            worst = max(worst, bound_any_order_s(stage_s, len(chunks)))
        else:
            sums = [
                sum(counts[chunk] * stage_s[p] for chunk, stage_s in times.items())
                for p in range(len(replica.stages))
            ]
            worst = max(worst, *sums)
    return worst


def chunk_without_number(chunk: Chunk) -> Chunk:
    """The chunk of one whole sequence as if it were sequence 0: equal lengths are equal."""
    return Chunk((Slice(0, 0, chunk.num_tokens),))


def replica_sequences(instance: Instance, layout: Layout) -> tuple[range, ...]:
    """Sequence numbers of every replica: floor / ceil, in order."""
    counts = even_counts(len(instance.workload.sequence_lengths), len(layout.replicas))
    return tuple(range(first, stop) for first, stop in ranges(counts))


def sequence_chunks(instance: Instance, sequences: Iterable[int]) -> tuple[Chunk, ...]:
    """One chunk for every whole sequence."""
    lengths = instance.workload.sequence_lengths
    return tuple(Chunk((Slice(number, 0, lengths[number]),)) for number in sequences)


def complete(instance: Instance, layout: Layout) -> Plan | Overflow:
    """Choose ZeRO mode and recompute of every stage; the overflow when one cannot fit."""
    replicas, batches = [], []
    for replica_idx, sequences in enumerate(replica_sequences(instance, layout)):
        replica = layout.replicas[replica_idx]
        chunks = sequence_chunks(instance, sequences)
        num_stages = len(replica.stages)
        schedule = one_f_one_b(num_stages, len(chunks))
        choices = []
        for stage_idx in range(num_stages):
            choice = choose(instance, layout, replica_idx, stage_idx, chunks, schedule)
            if isinstance(choice, Overflow):
                return choice
            choices.append(choice)
        replicas.append(Replica(tuple(choice.stage for choice in choices)))
        recompute = tuple((choice.recompute,) * len(chunks) for choice in choices)
        batches.append(ReplicaBatch((Pipeline(chunks, schedule, recompute),)))
    return Plan(Layout(tuple(replicas)), BatchPlan(tuple(batches)))


def choose(
    instance: Instance,
    layout: Layout,
    replica_idx: int,
    stage_idx: int,
    chunks: tuple[Chunk, ...],
    schedule: tuple[tuple[str, ...], ...],
    *,
    mixed: bool = True,
) -> StageChoice | Overflow:
    """The fastest ZeRO mode and recompute of one stage that fit in memory.

    One policy for all layers first; with `mixed`, as many layers as fit then take a lighter one.
    """
    stages = layout.replicas[replica_idx].stages
    shapes = [chunk_without_number(chunk) for chunk in chunks]
    if len(set(shapes)) == 1:
        # Of equal chunks P are enough to see the peak: P - p are in flight.
        chunks = chunks[: len(stages)]
        schedule = one_f_one_b(len(stages), len(chunks))
    num_layers = stages[stage_idx].num_layers

    def overflow_of(stage: Stage, recompute: Recompute) -> Overflow:
        changed = _with_stage(layout, replica_idx, stage_idx, stage)
        pipeline = Pipeline(chunks, schedule, ((recompute,) * len(chunks),) * len(stages))
        items = stage_memory(price_book(instance), changed, replica_idx, stage_idx, [pipeline])
        return fullest(instance, stage, stage_idx, items)

    lightest = next(sharded_stages(instance, stages[stage_idx]))
    fastest: Recompute = {"none": num_layers}
    if overflow_of(lightest, fastest).excess <= 1.0:
        # Other modes gather more, other policies repeat work.
        seconds = stage_seconds(instance, lightest, stage_idx, len(stages), shapes, fastest)
        return StageChoice(lightest, fastest, seconds)
    smallest = {
        stage: overflow_of(stage, {"full": num_layers})
        for stage in sharded_stages(instance, stages[stage_idx])
    }
    choices = [
        StageChoice(stage, recompute, stage_seconds(instance, stage, stage_idx, len(stages), shapes,
                                                    recompute))
        for stage, overflow in smallest.items()
        if overflow.excess <= 1.0
        for recompute in recompute_choices(num_layers)
        if (stage, recompute) != (lightest, fastest)
    ]  # fmt: skip
    for choice in sorted(choices, key=lambda choice: choice.stage_s):
        if overflow_of(choice.stage, choice.recompute).excess <= 1.0:
            break
    else:
        return min(smallest.values(), key=lambda overflow: overflow.excess)
    if not mixed:
        return choice
    recompute = _lightest_mix(
        choice, lambda recompute: overflow_of(choice.stage, recompute).excess <= 1.0
    )
    seconds = stage_seconds(instance, choice.stage, stage_idx, len(stages), shapes, recompute)
    return StageChoice(choice.stage, recompute, seconds)


def _lightest_mix(choice: StageChoice, fits: Callable[[Recompute], bool]) -> Recompute:
    """As many layers as fit with the next lighter policy in the place of the stage's own."""
    ((policy, num_layers),) = choice.recompute.items()
    best = choice.recompute
    for lighter in _POLICIES[: _POLICIES.index(policy)]:
        low, high = 0, num_layers
        while high - low > 1:
            middle = (low + high) // 2
            recompute: Recompute = {policy: num_layers - middle, lighter: middle}
            if fits(recompute):
                low, best = middle, recompute
            else:
                high = middle
        if low:
            break
    return best


def stage_seconds(
    instance: Instance,
    stage: Stage,
    stage_idx: int,
    num_stages: int,
    shapes: Sequence[Chunk],
    recompute: Recompute,
) -> float:
    """Seconds of F and B of all chunks on one stage."""
    counts: dict[Chunk, int] = {}
    for shape in shapes:
        counts[shape] = counts.get(shape, 0) + 1
    total_s = 0.0
    for shape, count in counts.items():
        price = price_stage(instance, stage, stage_idx, num_stages, shape, recompute)
        total_s += count * (price.forward_s + price.backward_s)
    return total_s


def sharded_stages(instance: Instance, stage: Stage) -> Iterator[Stage]:
    """The ZeRO modes worth trying, from least traffic to least memory.

    ZeRO-1 needs fewer bytes on the links and less memory than ZeRO-0; on one rank all are equal.
    """
    allowed = instance.workload.zero
    if 1 in allowed or 0 in allowed:
        yield replace(stage, zero=1 if 1 in allowed else 0)
    if 3 in allowed and (len(stage.ranks) > 1 or len(allowed) == 1):
        yield replace(stage, zero=3, zero3_gradients="step")
        yield replace(stage, zero=3, zero3_gradients="chunk")


def recompute_choices(num_layers: int) -> Iterator[Recompute]:
    """One policy for all layers of a stage, from least to most repeated work."""
    for policy in _POLICIES:
        yield {policy: num_layers}


_POLICIES: tuple[Policy, ...] = ("none", "layer", "full")


def _with_stage(layout: Layout, replica_idx: int, stage_idx: int, stage: Stage) -> Layout:
    stages = list(layout.replicas[replica_idx].stages)
    stages[stage_idx] = stage
    replicas = list(layout.replicas)
    replicas[replica_idx] = Replica(tuple(stages))
    return Layout(tuple(replicas))


def fullest(
    instance: Instance, stage: Stage, stage_idx: int, items: Iterable[MemoryItems]
) -> Overflow:
    """The rank whose memory is fullest."""
    ranks = []
    for rank, item in zip(stage.ranks, items, strict=True):
        capacity = instance.cluster.device(rank.device).memory_bytes
        usable = capacity - item.reserve
        ranks.append(Overflow(rank.device, stage_idx, item.needed_bytes, usable))
    return max(ranks, key=lambda overflow: overflow.excess)

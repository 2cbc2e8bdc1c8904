"""Random legal batch plans of a layout, made without any solver: cuts, packs, orders, pieces."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hexisolve.data.instance import Instance
from hexisolve.plan.check import check_plan
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

POLICIES: tuple[Policy, ...] = ("none", "mlp", "layer", "full")


def random_batch(instance: Instance, layout: Layout, rng: Random) -> Plan | None:
    """One draw that `check_plan` accepts, or None after some attempts."""
    for attempt in range(12):
        plan = _draw(instance, layout, rng, saving=attempt % 3 == 2)
        if plan is not None and not check_plan(instance, plan):
            return plan
    return None


def _draw(instance: Instance, layout: Layout, rng: Random, *, saving: bool) -> Plan | None:
    lengths = instance.workload.sequence_lengths
    homes: list[list[int]] = [[] for _ in layout.replicas]
    for sequence in rng.sample(range(len(lengths)), len(lengths)):
        homes[rng.randrange(len(homes))].append(sequence)
    if not all(homes):
        return None
    batches = []
    for replica, own in zip(layout.replicas, homes, strict=True):
        parts = [own]
        if len(own) > 1 and rng.random() < 0.3:
            cut = rng.randint(1, len(own) - 1)
            parts = [own[:cut], own[cut:]]
        batches.append(
            ReplicaBatch(
                tuple(_pipeline(instance, replica, part, rng, saving=saving) for part in parts)
            )
        )
    return Plan(layout, BatchPlan(tuple(batches)))


def _pipeline(
    instance: Instance, replica: Replica, sequences: list[int], rng: Random, *, saving: bool
) -> Pipeline:
    chunks, blocks = _chunks(instance, sequences, rng)
    if rng.random() < 0.3:
        chunks = [
            Chunk(c.slices, tuple(_pieces(s, c, rng) for s in replica.stages)) for c in chunks
        ]
    recompute = tuple(
        tuple(_counts(stage.num_layers, rng, saving=saving) for _ in chunks)
        for stage in replica.stages
    )
    rows = _orders(blocks, len(replica.stages), rng, eager=not saving)
    return Pipeline(tuple(chunks), rows, recompute)


def _chunks(instance: Instance, sequences: list[int], rng: Random) -> tuple[list[Chunk], list[int]]:
    """Random cuts; whole sequences beside slices or in chunks of their own."""
    lengths = instance.workload.sequence_lengths
    may_cut = instance.workload.attention == "causal"
    share = rng.choice([0.0, 0.5, 1.0])
    packs: list[list[Slice]] = []
    blocks: list[int] = []
    whole = []
    for sequence in sequences:
        length = lengths[sequence]
        if may_cut and length > 1 and rng.random() < share:
            cuts = sorted(rng.sample(range(1, length), min(rng.randint(1, 4), length - 1)))
            packs += [[Slice(sequence, a, b)] for a, b in pairwise([0, *cuts, length])]
            blocks.append(len(cuts) + 1)
        else:
            whole.append(Slice(sequence, 0, length))
    for part in whole:
        if packs and rng.random() < 0.6:
            rng.choice(packs).append(part)
        else:
            packs.append([part])
            blocks.append(1)
    return [Chunk(tuple(pack)) for pack in packs], blocks


def _pieces(stage: Stage, chunk: Chunk, rng: Random) -> tuple[tuple[Slice, ...], ...]:
    """Every token of the chunk with some rank."""
    own: list[list[Slice]] = [[] for _ in stage.ranks]
    for part in chunk.slices:
        inside = range(part.start + 1, part.stop)
        cuts = sorted(rng.sample(inside, min(rng.randint(0, 4), len(inside))))
        for a, b in pairwise([part.start, *cuts, part.stop]):
            own[rng.randrange(len(own))].append(Slice(part.sequence, a, b))
    return tuple(map(tuple, own))


def _counts(num_layers: int, rng: Random, *, saving: bool) -> dict[Policy, int]:
    if saving:
        return {"full": num_layers}
    counts: dict[Policy, int] = {}
    for _ in range(num_layers):
        policy = rng.choice(POLICIES if rng.random() < 0.5 else ("none",))
        counts[policy] = counts.get(policy, 0) + 1
    return counts


def _orders(
    blocks: list[int], num_stages: int, rng: Random, *, eager: bool
) -> tuple[tuple[str, ...], ...]:
    """Backward block by block, in reverse inside; random numbers of forwards before each."""
    backward: list[int] = []
    done: list[int] = []
    total = sum(blocks)
    for size in blocks:
        first = len(backward)
        backward += range(first + size - 1, first - 1, -1)
        done += [first + size] * size
    if eager:
        done = [min(total, number + rng.choice([0, 0, 1, 2])) for number in done]
    rows = []
    for p in range(num_stages):
        row: list[str] = []
        num_done = 0
        for j, chunk in enumerate(backward):
            count = max(done[: min(j + num_stages - p, total)])
            row += [f"F{idx}" for idx in range(num_done, count)]
            row.append(f"B{chunk}")
            num_done = max(num_done, count)
        rows.append(tuple(row))
    return tuple(rows)

"""Random plans of the plan space of large clusters, made without the solver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random

from hexisolve.data.instance import Instance
from hexisolve.plan.check import check_plan
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

MODES = ((0, "step"), (1, "step"), (3, "step"), (3, "chunk"))


def evenly(total: int, parts: int) -> list[int]:
    return [total // parts + (idx < total % parts) for idx in range(parts)]


def parts_of(total: int, weights: list[float]) -> list[int]:
    """Whole numbers in about these proportions."""
    counts = [int(total * weight / sum(weights)) for weight in weights]
    counts[counts.index(max(counts))] += total - sum(counts)
    return counts


def regular_ring(instance: Instance, hosts: list[str], rng: Random) -> tuple[HeadGroup, ...]:
    """Bundles of hosts, groups that are alike, even shares inside a host."""
    cluster = instance.cluster
    members = {host: [device.id for device in cluster.devices_of(host)] for host in hosts}
    block = instance.workload.block_tokens
    spread = rng.choice((0.0, 0.1, 0.3, 1.0))
    speed = [cluster.device(members[host][0]).dense_flop_per_s for host in hosts]
    weights = [own * 2.0 ** rng.gauss(0, spread) for own in speed]
    longest = max(instance.workload.sequence_lengths)
    blocks = -(-longest // block)
    tokens = dict(zip(hosts, parts_of(blocks, weights), strict=True))
    num_heads = instance.model.layers[0].attention.num_q_heads
    rest, groups = list(hosts), []
    rng.shuffle(rest)
    while rest:
        bundle = [rest.pop() for _ in range(rng.randint(1, len(rest)))]
        sizes = [len(members[host]) for host in bundle]
        number = rng.choice([g for g in range(1, 9) if not any(size % g for size in sizes)])
        heads = parts_of(num_heads, [weights[hosts.index(h)] * 2 ** rng.gauss(0, spread)
                                     for h in bundle])  # fmt: skip
        # Blocks are dealt to the groups in turn, then to the ranks of the group.
        dealt = {host: evenly(tokens[host], number) for host in bundle}
        firsts = [sum(heads[:place]) for place in range(len(bundle))]
        turns = rng.random() < 0.5  # there and back in turn: the same heads, in another order
        for idx in range(number):
            ranks = []
            own_heads = list(zip(bundle, heads, firsts, strict=True))
            for host, count, first in own_heads[:: -1 if turns and idx % 2 else 1]:
                size = len(members[host]) // number
                own = members[host][idx * size : (idx + 1) * size]
                shares = zip(own, evenly(dealt[host][idx], size), evenly(count, size), strict=True)
                for device, owned, few in shares:
                    ranks.append(Rank(device, owned * block, (first, first + few)))
                    first += few
            groups.append(HeadGroup(tuple(ranks)))
    if len(hosts) == 1:
        return one_host(instance, members[hosts[0]], number, rng)
    return shortened(groups, blocks * block - longest, rng)


def one_host(
    instance: Instance, devices: list[str], number: int, rng: Random
) -> tuple[HeadGroup, ...]:
    """The first ranks have what is left over; the shorter block is the last of it."""
    longest, block = max(instance.workload.sequence_lengths), instance.workload.block_tokens
    blocks, size = -(-longest // block), len(devices) // number
    tokens = [block * count for count in evenly(blocks, len(devices))]
    tokens[(blocks - 1) % len(devices)] -= blocks * block - longest
    heads = evenly(instance.model.layers[0].attention.num_q_heads, size)
    firsts = [sum(heads[:k]) for k in range(size)]
    return tuple(
        HeadGroup(
            tuple(
                Rank(devices[g + k], tokens[g + k], (firsts[k], firsts[k] + heads[k]))
                for k in range(size)
            )
        )
        for g in range(0, len(devices), size)
    )


def shortened(groups: list[HeadGroup], missing: int, rng: Random) -> tuple[HeadGroup, ...]:
    """Some rank that has tokens gives up what the last block has less."""
    owners = [(i, k) for i, g in enumerate(groups) for k, rank in enumerate(g.ranks) if rank.tokens]
    row, place = rng.choice(owners)
    ranks = list(groups[row].ranks)
    ranks[place] = replace(ranks[place], tokens=ranks[place].tokens - missing)
    return (*groups[:row], HeadGroup(tuple(ranks)), *groups[row + 1 :])


def regular_plans(instance: Instance, rng: Random, number: int) -> Iterator[Plan]:
    """Legal plans of a few stages of whole hosts."""
    every = list(instance.cluster.hosts())
    lengths = instance.workload.sequence_lengths
    order = sorted(range(len(lengths)), key=lambda idx: (-lengths[idx], idx))
    chunks = tuple(Chunk((Slice(idx, 0, lengths[idx]),)) for idx in order)
    made = 0
    for _ in range(400):
        hosts = rng.sample(every, rng.randint(1, min(len(every), 4)))
        cuts = sorted(rng.sample(range(1, len(hosts)), rng.randint(0, len(hosts) - 1)))
        edges = [0, *cuts, len(hosts)]
        own = [hosts[a:b] for a, b in pairwise(edges)]
        inner = sorted(rng.sample(range(1, instance.model.num_layers), len(own) - 1))
        bounds = [0, *inner, instance.model.num_layers]
        stages, recompute = [], []
        for idx, group in enumerate(own):
            zero, gradients = rng.choice(MODES)
            layers = (bounds[idx], bounds[idx + 1])
            # In the order of the cluster, so that a ring passes a host's port once.
            ring = regular_ring(instance, sorted(group, key=every.index), rng)
            stages.append(Stage(layers, ring, "kv", zero, gradients))  # type: ignore[arg-type]
            full = rng.randint(0, layers[1] - layers[0])
            again = rng.randint(0, layers[1] - layers[0] - full)
            counts = {"full": full, "layer": again, "none": layers[1] - layers[0] - full - again}
            recompute.append({policy: count for policy, count in counts.items() if count})
        pipeline = Pipeline(
            chunks, one_f_one_b(len(stages), len(chunks)),
            tuple((counts,) * len(chunks) for counts in recompute),
        )  # fmt: skip
        plan = Plan(Layout((Replica(tuple(stages)),)), BatchPlan((ReplicaBatch((pipeline,)),)))
        if not check_plan(instance, plan):
            yield plan
            made += 1
        if made == number:
            return

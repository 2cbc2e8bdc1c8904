"""Random layouts and batches for tests of elastic pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.library import resolve_path
from hexisolve.data.model_spec import ModelSpec
from hexisolve.data.workload import Workload
from hexisolve.formulation.chunk_load import Span
from hexisolve.plan.plan import HeadGroup, Layout, Rank, Replica, Stage
from tests.oracle.instances import random_instance
from tests.oracle.random_plans import random_legal_plans


def random_case(rng: Random) -> tuple[Instance, Layout]:
    """A tiny instance with up to 9 unlike sequences, and a random layout of its devices.

    The layout holds whole sequences of another workload, so memory may be short here.
    """
    while True:
        instance = random_instance(rng, 3_000, (2, 2, 3, 3, 4))
        plans = random_legal_plans(instance, rng, number=1, moves=0)
        plan = next(plans, None)
        if plan is not None:
            break
    lengths = [rng.choice([1, 2, 7, 40, 150, 400]) + rng.randrange(30) for _ in range(9)]
    count = rng.randint(1, 9)
    workload = Workload(
        lengths=tuple(lengths[:count]),
        dtype=instance.workload.dtype,
        zero=instance.workload.zero,
        attention=rng.choice(["causal", "causal", "causal", "full"]),
        block_tokens=1,
    )
    return replace(instance, workload=workload), plan.layout


def random_blocks(rng: Random, most: int = 5) -> list[int]:
    """Sizes of up to six blocks."""
    return [rng.choice([1, 1, rng.randint(1, most)]) for _ in range(rng.randint(1, 6))]


def bundled(cluster: str, model: str, lengths: Sequence[int]) -> Instance:
    """An instance from the library."""
    return Instance(
        Cluster.read(resolve_path("clusters", cluster)),
        ModelSpec.from_config(resolve_path("llm", model)),
        Workload(lengths=tuple(lengths)),
    )


def stage_per_host(instance: Instance, num_replicas: int = 1) -> Layout:
    """Every host one stage and one head group, layers by speed, in the order of the cluster."""
    hosts: dict[str, list[str]] = {}
    for device in instance.cluster.devices:
        hosts.setdefault(device.host, []).append(device.id)
    boxes = list(hosts.values())
    each = len(boxes) // num_replicas
    model = instance.model
    heads = model.layers[0].attention.num_q_heads
    replicas = []
    for first in range(0, each * num_replicas, each):
        own = boxes[first : first + each]
        rates = [sum(instance.cluster.device(name).dense_flop_per_s for name in box) for box in own]
        ends = [
            round(model.num_layers * sum(rates[: idx + 1]) / sum(rates)) for idx in range(len(own))
        ]
        stages = []
        for box, start, stop in zip(own, [0, *ends[:-1]], ends, strict=True):
            cuts = [heads * idx // len(box) for idx in range(len(box) + 1)]
            ranks = tuple(Rank(name, 1, (cuts[idx], cuts[idx + 1])) for idx, name in enumerate(box))
            stages.append(Stage((start, stop), (HeadGroup(ranks),), "kv", 1))
        replicas.append(Replica(tuple(stages)))
    return Layout(tuple(replicas))


def spans_of(chunks: Sequence[object]) -> list[list[Span]]:
    """Slices of chunks of a plan, as the search writes them."""
    return [
        [(part.sequence, part.start, part.stop) for part in chunk.slices]  # type: ignore[attr-defined]
        for chunk in chunks
    ]

"""How long `evaluate` and `check_plan` take: python benchmarks/evaluate_speed.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.instance_file import resolve_model
from hexisolve.data.workload import Workload
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

SETTINGS = (
    ("local-mixed-4", "tiny-llama-3m", 2, 2, False, 1024, 4),
    ("mixed-32", "llama-3.1-70b", 4, 8, False, 262_144, 8),
    ("mixed-32", "llama-3.1-70b", 4, 4, True, 65_536, 8),
    ("mixed-128", "llama-3.1-70b", 16, 8, False, 262_144, 8),
    ("mixed-128", "llama-3.1-70b", 16, 4, True, 65_536, 8),
    ("mixed-128", "llama-3.1-70b", 1, 8, False, 262_144, 8),
    ("mixed-128", "llama-3.1-70b", 1, 64, False, 262_144, 8),
)
"""Cluster, model, stages, size of head groups, whether stages share hosts, context, batch."""


def even_plan(
    instance: Instance, num_stages: int, group_size: int, shift: int, *, are_shared: bool = False
) -> Plan:
    """Even stages of even head groups; `shift` moves tokens so that plans differ.

    With `are_shared` stages 2 p and 2 p + 1 each take half of the devices of both.
    """
    model, workload = instance.model, instance.workload
    devices = [device.id for device in instance.cluster.devices]
    num_heads = model.layers[0].attention.num_q_heads
    per_stage = len(devices) // num_stages
    stages = []
    for p in range(num_stages):
        own = devices[p * per_stage : (p + 1) * per_stage]
        if are_shared:
            both = devices[(p - p % 2) * per_stage : (p - p % 2 + 2) * per_stage]
            half, first_idx = per_stage // 2, p % 2 * (per_stage // 2)
            own = [
                *both[first_idx : first_idx + half],
                *both[per_stage + first_idx : per_stage + first_idx + half],
            ]
        groups = []
        for first in range(0, per_stage, group_size):
            members = own[first : first + group_size]
            bounds = [num_heads * idx // len(members) for idx in range(len(members) + 1)]
            groups.append(
                HeadGroup(
                    tuple(
                        Rank(device, 1000 + shift * (idx % 2), (bounds[idx], bounds[idx + 1]))
                        for idx, device in enumerate(members)
                    )
                )
            )
        layers = (model.num_layers * p // num_stages, model.num_layers * (p + 1) // num_stages)
        stages.append(Stage(layers, tuple(groups), zero=3))
    lengths = workload.sequence_lengths
    chunks = tuple(Chunk((Slice(idx, 0, length),)) for idx, length in enumerate(lengths))
    pipeline = Pipeline(
        chunks,
        one_f_one_b(num_stages, len(chunks)),
        tuple(tuple({"layer": stage.num_layers} for _ in chunks) for stage in stages),
    )
    return Plan(Layout((Replica(tuple(stages)),)), BatchPlan((ReplicaBatch((pipeline,)),)))


def best_ms(work: Callable[[int], object], repeats: int = 5) -> float:
    """Best of `repeats` runs, in milliseconds."""
    times = []
    for idx in range(repeats):
        start = time.perf_counter()
        work(idx)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main() -> None:
    """Print one row per setting."""
    logging.disable(logging.WARNING)
    print(
        "| cluster | model | stages | head group | shared hosts "
        "| new plan ms | known plan ms | check ms |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for cluster, name, num_stages, size, are_shared, context, batch in SETTINGS:
        workload = Workload(context_tokens=context, batch_sequences=batch)
        instance = Instance(Cluster.read(cluster), resolve_model(name), workload)
        plans = [
            even_plan(instance, num_stages, size, shift, are_shared=are_shared)
            for shift in range(7)
        ]
        evaluate(instance, plans[6])  # routes are searched once per cluster
        new_ms = best_ms(lambda idx, i=instance, p=plans: evaluate(i, p[idx]))
        known_ms = best_ms(lambda _, i=instance, p=plans: evaluate(i, p[0]))
        check_ms = best_ms(lambda idx, i=instance, p=plans: check_plan(i, p[idx]))
        print(
            f"| {cluster} | {name} | {num_stages} | {size} | {'yes' if are_shared else 'no'} "
            f"| {new_ms:.2f} | {known_ms:.2f} | {check_ms:.2f} |"
        )


if __name__ == "__main__":
    main()

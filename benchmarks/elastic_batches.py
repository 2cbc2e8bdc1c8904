"""Batches of real lengths, one stage per host: python benchmarks/elastic_batches.py LENGTHS_FOLDER.

LENGTHS_FOLDER holds files with one sequence length per line; every file gives batches of 512. One
JSON line per setting: CPU seconds of the rule alone and of everything, step, gaps, bubbles.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from hexisolve.data.cluster import Cluster
from hexisolve.data.instance import Instance
from hexisolve.data.library import resolve_path
from hexisolve.data.model_spec import ModelSpec
from hexisolve.data.workload import Workload
from hexisolve.plan.check import check_plan
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import HeadGroup, Layout, Rank, Replica, Stage
from hexisolve.solvers.elastic.batch import plan_batch
from hexisolve.solvers.elastic.heuristic import heuristic_batch

CLUSTERS = ("a800-4x8", "mixed-32")
MODEL = "llama-2-13b"
FILES = ("wikipedia_first_5120.txt", "prolong_20k.txt")
CONTEXTS = (49_152, 98_304, 196_608)
NUM_SEQUENCES = 512


def stage_per_host(cluster: Cluster, model: ModelSpec) -> Layout:
    """Every host one stage and one head group; layers by dense speed, in the cluster's order."""
    hosts: dict[str, list[str]] = {}
    for device in cluster.devices:
        hosts.setdefault(device.host, []).append(device.id)
    rates = [sum(cluster.device(name).dense_flop_per_s for name in box) for box in hosts.values()]
    stages, first, done = [], 0, 0.0
    for box, rate in zip(hosts.values(), rates, strict=True):
        done += rate
        stop = round(model.num_layers * done / sum(rates))
        heads = model.layers[0].attention.num_q_heads
        cuts = [heads * idx // len(box) for idx in range(len(box) + 1)]
        ranks = tuple(Rank(name, 1, (cuts[idx], cuts[idx + 1])) for idx, name in enumerate(box))
        stages.append(Stage((first, stop), (HeadGroup(ranks),), "kv", 1))
        first = stop
    return Layout((Replica(tuple(stages)),))


def batches(folder: Path, num_batches: int) -> list[tuple[str, int, tuple[int, ...]]]:
    """(name, context, lengths): consecutive batches of every file, and one with long sequences."""
    found = []
    for file in FILES:
        lengths = [int(word) for word in (folder / file).read_text().split()]
        for context in CONTEXTS:
            for idx in range(num_batches):
                own = lengths[idx * NUM_SEQUENCES : (idx + 1) * NUM_SEQUENCES]
                name = f"{file.partition('_')[0]} {idx}"
                found.append((name, context, tuple(min(length, context) for length in own)))
    prolong = [int(word) for word in (folder / FILES[1]).read_text().split()]
    for context in CONTEXTS:
        # Few batches of the files reach their context: seven long sequences replace the first.
        long = [context] * 3 + [context // 2] * 4
        rest = [min(length, context) for length in prolong[len(long) : NUM_SEQUENCES]]
        found.append(("long", context, tuple(long + rest)))
    return found


def measure(
    cluster: Cluster, name: str, context: int, lengths: tuple[int, ...]
) -> dict[str, object]:
    """One setting."""
    model = ModelSpec.from_config(resolve_path("llm", MODEL))
    instance = Instance(cluster, model, Workload(lengths=lengths))
    layout = stage_per_host(cluster, model)
    begun = time.process_time()
    heuristic_batch(instance, layout)
    rule_cpu_s = time.process_time() - begun
    # A planner that plans every iteration on one layout has measured it before.
    again = Instance(cluster, model, Workload(lengths=lengths))
    begun = time.process_time()
    result = plan_batch(again, layout, time_limit_s=3.0)
    all_cpu_s = time.process_time() - begun
    evaluation = evaluate(again, result.plan)
    assert not check_plan(again, result.plan)
    (pipeline,) = result.plan.batch.replicas[0].pipelines
    num_chunks, num_stages = len(pipeline.chunks), len(layout.replicas[0].stages)
    return {
        "cluster": cluster.name, "batch": name, "context": context, "tokens": sum(lengths),
        "longest": max(lengths), "chunks": num_chunks, "rule_cpu_s": round(rule_cpu_s, 3),
        "all_cpu_s": round(all_cpu_s, 2), "step_s": round(result.step_time_s, 3),
        "gap": round(result.gap, 4),
        "fixed_gap": None if result.fixed_gap is None else round(result.fixed_gap, 5),
        "bubbles": round(evaluation.bubble_share, 4),
        "bubbles_of_equal_chunks": round((num_stages - 1) / (num_chunks + num_stages - 1), 4),
        "recompute": any(set(own) - {"none"} for row in pipeline.recompute for own in row),
    }  # fmt: skip


def main() -> None:
    """Print one line per setting, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=3)
    args = parser.parse_args()
    rows = []
    for cluster_name in CLUSTERS:
        cluster = Cluster.read(resolve_path("clusters", cluster_name))
        for name, context, lengths in batches(args.folder, args.batches):
            rows.append(measure(cluster, name, context, lengths))
            print(json.dumps(rows[-1]), flush=True)
    for key in ("rule_cpu_s", "all_cpu_s", "gap", "fixed_gap"):
        values = [float(row[key]) for row in rows if row[key] is not None]  # type: ignore[arg-type]
        summary = {"of": key, "median": round(statistics.median(values), 5), "worst": max(values)}
        print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main()

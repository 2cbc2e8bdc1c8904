"""The solver on the published settings: mixed-32 and mixed-32-fast, 13B and 70B, 64K to 1M tokens.

    python benchmarks/published_settings.py [--time-limit 10] [--sensitivity] [--no-baselines]
                                             [--only TEXT]

Prints one markdown row per setting. `--sensitivity` repeats every setting with one kind of device
at a time at 0.8 and 1.2 times its speed (dense and attention together).
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator

import hexisolve as hx
from hexisolve.solvers.result import Result

CLUSTERS = ("mixed-32", "mixed-32-fast")
MODELS = ("llama-2-13b", "llama-3.1-70b")
CONTEXTS = (65_536, 262_144, 1_048_576)
BATCH = 8
ONE_REPLICA = ("ring", "ulysses", "usp", "proportional", "hexiseq", "subset_one_replica")
KINDS = ("H100-SXM-80GB", "A100-SXM-80GB", "L40S-48GB")
COLUMNS = ("setting", "status", "objective", "bound", "gap", "wall")
BASELINE_COLUMNS = ("best one-replica baseline", "of it")


def settings(sensitivity: bool) -> Iterator[tuple[str, hx.Instance]]:
    """(name, instance) of every row."""
    from hexisolve.data.library import models_folder

    for cluster_name in CLUSTERS:
        cluster = hx.Cluster.read(cluster_name)
        variants = [(cluster_name, cluster)]
        if sensitivity:
            variants += [
                (f"{cluster_name}, {kind} x {factor}", cluster.with_speed(kind, factor))
                for kind in KINDS
                for factor in (0.8, 1.2)
            ]
        for model_name in MODELS:
            path = models_folder() / "llm" / f"{model_name}.json"
            model = hx.ModelSpec.from_config(path, model_name)
            for context in CONTEXTS:
                workload = hx.Workload(context_tokens=context, batch_sequences=BATCH)
                for name, variant in variants:
                    title = f"{name}, {model_name}, {context // 1024}K"
                    yield title, hx.Instance(variant, model, workload)


def baseline_cells(instance: hx.Instance, result: Result) -> list[str]:
    """The fastest baseline of one replica and uncut sequences, and the solver as a part of it."""
    found = hx.baselines(instance, names=ONE_REPLICA)
    times = {name: own.step_time_s for name, own in found.items() if own.step_time_s is not None}
    if not times:
        return ["none fits", "-"]
    name = min(times, key=lambda own: times[own])
    ratio = "-" if result.objective_s is None else f"{result.objective_s / times[name]:.3f}"
    return [f"{name}, {times[name]:.3f} s", ratio]


def row(title: str, result: Result, more: list[str]) -> str:
    """One markdown row."""
    objective = "-" if result.objective_s is None else f"{result.objective_s:.3f} s"
    bound = "-" if result.bound_s is None else f"{result.bound_s:.3f} s"
    gap = "-" if result.gap is None else f"{100 * result.gap:.2f}%"
    cells = [title, result.status.value, objective, bound, gap, f"{result.wall_s:.1f} s", *more]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Solve and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--backend", default="dp")
    parser.add_argument("--sensitivity", action="store_true")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--only", default="", help="settings whose name holds this text")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
          f"Python {platform.python_version()}, limit {options.time_limit:g} s\n")  # fmt: skip
    columns = COLUMNS if options.no_baselines else COLUMNS + BASELINE_COLUMNS
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    for title, instance in settings(options.sensitivity):
        if options.only in title:
            result = hx.solve(instance, time_limit_s=options.time_limit, backend=options.backend)
            more = [] if options.no_baselines else baseline_cells(instance, result)
            print(row(title, result, more), flush=True)


if __name__ == "__main__":
    main()

"""Every installed backend on the configuration programs of real tables: time, value, bound.

    python benchmarks/backends.py [--time-limit 60] [--cutoff 1.05] [CLUSTER:MODEL ...]

Prints one markdown row per program and backend. A program leaves out what cannot beat `cutoff`
times the optimum of the dynamic program. Context 64K, batch 8; relative gap 0.2%, as `solve` asks.
"""

from __future__ import annotations

import argparse
import math
import time

import hexisolve as hx
from hexisolve.data.library import models_folder
from hexisolve.errors import BackendError
from hexisolve.formulation.configuration_program import build_configuration_program
from hexisolve.formulation.relaxed_table import relaxed_problem
from hexisolve.formulation.units import connected_parts
from hexisolve.solvers.backends import available_backends, solve_linear
from hexisolve.solvers.dynamic_program import solve_relaxed

SETTINGS = ("mixed-16:llama-3.2-3b", "mixed-16:llama-2-7b", "mixed-32:llama-2-13b")
GAP = 0.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=SETTINGS, metavar="CLUSTER:MODEL")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--cutoff", type=float, default=1.05)
    args = parser.parse_args()
    print("| program | variables | backend | status | value / optimum | bound / optimum | wall |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for setting in args.settings:
        cluster, _, model = setting.partition(":")
        spec = hx.ModelSpec.from_config(models_folder() / "llm" / f"{model}.json", model)
        workload = hx.Workload(context_tokens=65_536, batch_sequences=8)
        instance = hx.Instance(hx.Cluster.read(cluster), spec, workload)
        part = connected_parts(instance.cluster, workload.dtype)[0]
        table = relaxed_problem(instance, None, False, part, deadline=math.inf).table
        begun = time.monotonic()
        best_s = solve_relaxed(table, cutoff_s=1e9, relative_gap=1e-6).value_s
        program = build_configuration_program(table, args.cutoff * best_s)
        size = f"{len(program.model.variables):,}"
        print(f"| {setting} | {size} | dp | optimal | 1 | 1 | {time.monotonic() - begun:.1f} s |")
        for name in available_backends():
            begun = time.monotonic()
            try:
                found = solve_linear(
                    program.model, name, time_limit_s=args.time_limit, relative_gap=GAP
                )
            except BackendError as error:
                print(f"| {setting} | {size} | {name} | error: {error} | | | |")
                continue
            wall_s = time.monotonic() - begun
            value = "-"
            if found.values is not None:
                value_s = table.value_s(program.configuration(found.values))
                value = f"{value_s / best_s:.5f}"
            bound = "-" if found.bound is None else f"{found.bound / best_s:.5f}"
            status = found.termination.value
            print(
                f"| {setting} | {size} | {name} | {status} | {value} | {bound} | {wall_s:.1f} s |",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""How often CBC is wrong on random small models, with and without its integer preprocessing.

PYTHONPATH=. python benchmarks/cbc_preprocessing.py [--models 1500] [--first 10000]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections import Counter

import pulp

from hexisolve.solvers.pulp_library import _problem
from hexisolve.solvers.scaled_model import scaled_model
from tests.solvers.random_models import least_objective, random_model


def verdict(seed: int, preprocess: str) -> str:
    """What CBC says of a model, and whether that is right."""
    model = random_model(seed)
    least = least_objective(model)
    kind = "infeasible" if least is None else "feasible"
    scaled = scaled_model(model)
    problem, _ = _problem(scaled.model)
    native = pulp.PULP_CBC_CMD(msg=False, gapRel=0.0, options=[f"preprocess {preprocess}"])
    native.tmpDir = ""
    try:
        problem.solve(native)
    except pulp.PulpSolverError:
        return f"crash on a {kind} model"
    if problem.status == pulp.LpStatusInfeasible:
        return "infeasible, right" if least is None else "infeasible, WRONG"
    if least is None:
        return "optimal, WRONG: infeasible"
    value = pulp.value(problem.objective) * scaled.objective_unit
    near = abs(value - least) <= 1e-6 * max(abs(least), 1e-3)
    return "optimal, right" if near else "optimal, WRONG: a worse solution"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1500)
    parser.add_argument("--first", type=int, default=10_000)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for preprocess in ("on", "off"):
            seeds = range(args.first, args.first + args.models)
            counts = Counter(verdict(seed, preprocess) for seed in seeds)
            print(f"preprocess {preprocess}: {dict(sorted(counts.items()))}")
        os.chdir("/")


if __name__ == "__main__":
    main()

"""Random small linear models, their least objective by enumeration, and a process that solves them.

``python -m tests.solvers.random_models BACKEND FIRST LAST`` answers with a JSON line per seed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import tempfile

from hexisolve.errors import BackendError
from hexisolve.formulation.linear_model import LinearModel
from hexisolve.solvers.backends import BACKENDS
from hexisolve.solvers.model_documents import solution_document


def random_model(seed: int) -> LinearModel:
    """Integers with negative bounds, decimals, bytes, equations; half of them with a real to bound.

    The real is like a step time: the largest of several sums.
    """
    draw = random.Random(seed)
    model = LinearModel(f"random-{seed}")
    scale = draw.choice([1, 1, 1, 1000, 1e7]) / draw.choice([1, 1, 8])
    integers = [
        model.add_variable(f"x[{idx}]", draw.choice([0, 0, 0, -2]), draw.choice([1, 1, 2, 3]))
        for idx in range(draw.randint(2, 6))
    ]
    for number in range(draw.randint(1, 6)):
        terms = [(x, draw.randint(-9, 9) * scale) for x in integers if draw.random() < 0.7]
        inside = sum(f * draw.randint(int(x.lower), int(x.upper)) for x, f in terms)
        model.add_row(f"row[{number}]", terms, draw.choice(["<=", ">=", "<=", ">=", "=="]), inside)
    size = draw.choice([1, 0.001, 300])
    if draw.random() < 0.5:
        model.minimise([(x, size * draw.randint(-9, 9)) for x in integers])
        return model
    longest_s = model.add_variable("longest_s", 0.0, 100.0 * size, is_integer=False)
    for number in range(draw.randint(1, 3)):
        times = [(x, size * draw.uniform(0, 5)) for x in integers]
        model.add_row(f"time[{number}]", [*times, (longest_s, -1.0)], "<=", 0.0)
    model.minimise([(longest_s, 1.0)])
    return model


def least_objective(model: LinearModel) -> float | None:
    """The least objective of a random model, by trying all integers; None when nothing fits."""
    integers = [v for v in model.variables if v.is_integer]
    ranges = [range(int(v.lower), int(v.upper) + 1) for v in integers]
    best = None
    for choice in itertools.product(*ranges):
        values = [float(value) for value in choice]
        if len(values) < len(model.variables):
            sums = [
                sum(f * values[i] for i, f in row.terms.items() if i < len(values))
                for row in model.rows
                if row.name.startswith("time")
            ]
            values.append(max(0.0, *sums))
        slack = 1e-9 * max(1.0, *(abs(row.right) for row in model.rows))
        if values[-1] > model.variables[-1].upper + slack:
            continue
        if all(row.violation(values) <= slack for row in model.rows):
            value = model.objective_value(values)
            best = value if best is None else min(best, value)
    return best


def main() -> None:
    """Solve a range of seeds with a backend in this process."""
    name, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    back = os.dup(1)
    os.dup2(2, 1)
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for seed in range(first, last):
            try:
                solution = BACKENDS[name].solve_here(
                    random_model(seed), time_limit_s=20.0, relative_gap=0.0, seed=seed
                )
            except BackendError as error:
                answers.append(json.dumps({"error": str(error)}))
            else:
                answers.append(json.dumps(solution_document(solution)))
        os.chdir("/")
    with os.fdopen(back, "w") as stream:
        stream.write("\n".join(answers))


if __name__ == "__main__":
    main()

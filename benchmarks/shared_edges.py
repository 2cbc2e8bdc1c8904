"""Plans whose stages share a wire: `evaluate` beside a play of every event.

Run it from the repository root::

    PYTHONPATH=. python benchmarks/shared_edges.py --plans 80

Two stages of 1 to 4 layers, each a ring or a head group over the same two hosts of two devices; all
links alike, drawn from slow to nearly wide enough; 3 to 8 chunks of 300 to 3,000 tokens.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Sequence
from statistics import mean

from hexisolve.data.instance import Instance
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import Plan, Stage
from hexisolve.program.clock import play_flat, simulate
from hexisolve.program.compile import compile_plan
from tests.plan.plan_examples import (
    instance_of,
    model_of,
    plan_of,
    stage_of,
    two_hosts,
    whole_chunks,
)

WITHIN = 0.05


def drawn_plan(draw: random.Random) -> tuple[Instance, Plan]:
    """One plan of two stages over the same hosts."""
    layers = [draw.randint(1, 4), draw.randint(1, 4)]
    num_chunks, tokens = draw.randint(3, 8), draw.choice([300, 1000, 3000])
    kinds = draw.choice([("ring", "ring"), ("ring", "ring"), ("group", "group"), ("ring", "group")])
    stages = [
        _stage(draw, (sum(layers[:p]), sum(layers[: p + 1])), p, kind)
        for p, kind in enumerate(kinds)
    ]
    link = draw.choice([3e5, 5e5, 7e5, 1e6, 1.5e6])
    instance = instance_of(
        two_hosts(link), model_of(sum(layers)), batch_sequences=num_chunks, context_tokens=tokens
    )
    policy = draw.choice(["none", "layer", "full"])
    return instance, plan_of(stages, whole_chunks([tokens] * num_chunks), policy)


def _stage(draw: random.Random, layers: tuple[int, int], p: int, kind: str) -> Stage:
    """Devices p and p + 2: one in either host."""
    share, zero = draw.choice([500, 500, 650]), draw.choice([0, 1])
    if kind == "ring":
        first, second = [(f"d{p}", share, (0, 4))], [(f"d{p + 2}", 1000 - share, (0, 4))]
        return stage_of(layers, first, second, zero=zero)
    group = [(f"d{p}", share, (0, 2)), (f"d{p + 2}", 1000 - share, (2, 4))]
    return stage_of(layers, group, zero=zero)


def _line(name: str, differences: Sequence[float]) -> str:
    inside = sum(abs(difference) <= WITHIN for difference in differences)
    return (
        f"| {name} | {mean(differences):+.1%} | {mean(map(abs, differences)):.1%} "
        f"| {min(differences):+.1%} | {max(differences):+.1%} | {inside} of {len(differences)} |"
    )


def main(arguments: list[str]) -> int:
    """Print one row per comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=80)
    parser.add_argument("--seed", type=int, default=3)
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    draw = random.Random(options.seed)
    found: dict[str, list[float]] = {}
    for _ in range(options.plans):
        instance, plan = drawn_plan(draw)
        price = evaluate(instance, plan)
        flat_s = play_flat(compile_plan(instance, plan)).step_time_s
        clock_s = simulate(instance, plan).step_time_s
        # As if stages met nowhere: the longest path, and every edge over the whole step.
        path_s = price.pipeline_s - price.edge_wait_s + price.synchronisation_s + price.optimizer_s
        apart_s = max(path_s, *price.edge_seconds.values())
        for name, ours_s, theirs_s in (
            ("every event against `evaluate`", flat_s, price.step_time_s),
            ("every event against `evaluate` without waits", flat_s, apart_s),
            ("clock against `evaluate`", clock_s, price.step_time_s),
            ("every event against clock", flat_s, clock_s),
        ):
            found.setdefault(name, []).append(ours_s / theirs_s - 1)
    print("| difference of | mean | mean size | least | largest | within 5% |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, differences in found.items():
        print(_line(name, differences))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

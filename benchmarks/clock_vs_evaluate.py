"""The clock beside `evaluate` on the published settings.

Run it from the repository root::

    python benchmarks/clock_vs_evaluate.py --output docs/results/clock.md

For every setting it takes the baselines (and the solver's plan with ``--solver``), plays their
programs and prints both step times with their difference. ``pipeline`` and ``end`` say where the
difference comes from: until the last backward, and from there to the end of the step. ``link`` is
the share of a stage's F and B in which its busiest edge carries bytes (the worst stage): where it
comes near 100% the order of transfers decides, and `evaluate` hides what the clock cannot.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hexisolve.cost.communication import edge_seconds
from hexisolve.data.instance import Instance
from hexisolve.data.instance_file import resolve_cluster, resolve_model
from hexisolve.data.workload import Workload
from hexisolve.plan.evaluate import Evaluation, evaluate
from hexisolve.plan.plan import Layout, Plan
from hexisolve.program.clock import Timeline, simulate
from hexisolve.solvers.baselines import baselines

CLUSTERS = ("mixed-32", "mixed-32-fast")
MODELS = ("llama-2-13b", "llama-3.1-70b")
LINK_LIMITED = 0.7
CONTEXTS = (65_536, 262_144, 1_048_576)
NAMES = ("ring", "ulysses", "usp", "proportional", "hexiseq", "even", "subset")
HEADER = (
    "| cluster | model | context | plan | evaluate s | clock s | difference | pipeline | end | "
    "link | plays | wall s |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


@dataclass(frozen=True)
class Comparison:
    """One plan under both."""

    evaluation: Evaluation
    timeline: Timeline
    wall_s: float

    @property
    def difference(self) -> float:
        """(clock - evaluate) / evaluate."""
        return self.timeline.step_time_s / self.evaluation.step_time_s - 1

    @property
    def pipeline_s(self) -> float:
        """Until the last backward, by the clock."""
        numbers = range(self.timeline.num_stages)
        return max(end for n in numbers for _, end, _, _ in self.timeline.operations(n))

    @property
    def link_share(self) -> float:
        """Busiest edge of a stage over its F and B: above about 0.7 the links hold it up."""
        network = self.evaluation.instance.cluster
        efficiency = self.evaluation.instance.cost.link_efficiency
        worst = 0.0
        for stage in self.evaluation.stages:
            price = stage.prices[0]
            seconds = edge_seconds(network, dict(price.edges), efficiency)
            busiest_s = max(seconds.values(), default=0.0)
            worst = max(worst, busiest_s / (price.forward_s + price.backward_s))
        return worst

    @property
    def is_link_limited(self) -> bool:
        """Whether the links of some stage are busy most of the time."""
        return self.link_share > LINK_LIMITED

    def cells(self) -> tuple[str, ...]:
        """Cells of the table after the plan's name."""
        step_s = self.evaluation.step_time_s
        pipeline = (self.pipeline_s - self.evaluation.pipeline_s) / step_s
        return (
            f"{step_s:.3f}", f"{self.timeline.step_time_s:.3f}", f"{self.difference:+.1%}",
            f"{pipeline:+.1%}", f"{self.difference - pipeline:+.1%}",
            f"{self.link_share:.0%}", str(self.timeline.num_plays),
            f"{self.wall_s:.1f}",
        )  # fmt: skip


def compare(instance: Instance, plan: Plan) -> Comparison:
    """Price and play one plan."""
    begin_s = time.perf_counter()
    timeline = simulate(instance, plan)
    return Comparison(evaluate(instance, plan), timeline, time.perf_counter() - begin_s)


def plans(instance: Instance, *, with_solver: bool) -> Iterator[tuple[str, Plan]]:
    """Every plan of a setting; equal ones once, under all their names."""
    found: dict[tuple[Layout, float], tuple[Plan, list[str]]] = {}

    def note(name: str, plan: Plan) -> None:
        key = plan.layout, evaluate(instance, plan).step_time_s
        found.setdefault(key, (plan, []))[1].append(name)

    if with_solver:
        from hexisolve.solvers.solve import solve

        result = solve(instance, time_limit_s=10, relative_gap=0.01)
        if result.plan is not None:
            note("solver", result.plan)
    for name, baseline in baselines(instance, names=NAMES).items():
        if baseline.plan is not None:
            note(name, baseline.plan)
    for plan, names in found.values():
        yield ", ".join(names), plan


def main(arguments: list[str]) -> int:
    """Print the table, and write it when asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clusters", nargs="+", default=CLUSTERS)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--contexts", nargs="+", type=int, default=CONTEXTS)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--solver", action="store_true", help="also the solver's plan")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    lines = HEADER.splitlines()
    print(HEADER, flush=True)
    differences = []
    for cluster, model, context in itertools.product(
        options.clusters, options.models, options.contexts
    ):
        workload = Workload(context_tokens=context, batch_sequences=options.batch)
        instance = Instance(resolve_cluster(cluster), resolve_model(model), workload)
        for names, plan in plans(instance, with_solver=options.solver):
            comparison = compare(instance, plan)
            differences.append((comparison.difference, comparison.is_link_limited))
            cells = (cluster, model, str(context), names, *comparison.cells())
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    for wanted, words in ((False, f"with link up to {LINK_LIMITED:.0%}"), (True, "above")):
        own = [difference for difference, is_limited in differences if is_limited == wanted]
        if own:
            inside = sum(abs(difference) <= 0.05 for difference in own)
            lines.append(
                f"\n{len(own)} plans {words}: difference {min(own):+.1%} to {max(own):+.1%}, "
                f"{inside} within 5%."
            )
            print(lines[-1])
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

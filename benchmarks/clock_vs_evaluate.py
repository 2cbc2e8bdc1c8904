"""The clock beside `evaluate` on the published settings.

Run it from the repository root::

    python benchmarks/clock_vs_evaluate.py --output docs/results/clock.md

For every setting it takes the baselines (and the solver's plan with ``--solver``), plays their
programs and prints both step times with their difference. ``pipeline`` and ``end`` say where the
difference comes from: until the last backward, and from there to the end of the step. ``link`` is
the share of a stage's F and B in which its busiest edge carries bytes (the worst stage).
``limited by`` names that edge and what it carries when it is busy for more than 70%, or the stages
that want an edge together when they need more of it than the slowest of them takes, or wait for it
for more than 1% of the step (``waits`` is that part of the step). A setting without a plan is said
to be infeasible, or not solved within the limit.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hexisolve.cost.communication import edge_seconds
from hexisolve.data.cluster import Edge
from hexisolve.data.instance import Instance
from hexisolve.data.instance_file import resolve_cluster, resolve_model
from hexisolve.data.workload import Workload
from hexisolve.plan.evaluate import Evaluation, evaluate
from hexisolve.plan.plan import Layout, Plan, layer_policies
from hexisolve.plan.price_book import price_book
from hexisolve.plan.stage_price import layer_works
from hexisolve.plan.tokens import chunk_shape
from hexisolve.program.clock import Timeline, simulate
from hexisolve.solvers.baselines import baselines

CLUSTERS = ("mixed-32", "mixed-32-fast")
MODELS = ("llama-2-13b", "llama-3.1-70b")
LINK_LIMITED = 0.7
SHARED_WAIT = 0.01
CONTEXTS = (65_536, 262_144, 1_048_576)
NAMES = ("ring", "ulysses", "usp", "proportional", "hexiseq", "even", "subset")
HEADER = (
    "| cluster | model | context | plan | evaluate s | clock s | difference | pipeline | end | "
    "link | limited by | plays | wall s |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
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

    @cached_property
    def stage_edges(self) -> list[dict[Edge, float]]:
        """Seconds of every edge in all F and B of a stage."""
        efficiency = self.evaluation.instance.cost.link_efficiency
        found = []
        for stage in self.evaluation.stages:
            total: dict[Edge, float] = {}
            for price in stage.prices:
                for edge, num_bytes in price.edges.items():
                    total[edge] = total.get(edge, 0.0) + num_bytes
            found.append(edge_seconds(self.evaluation.instance.cluster, total, efficiency))
        return found

    @cached_property
    def stage_s(self) -> list[float]:
        """Seconds of all F and B of a stage."""
        return [sum(s.forward_s) + sum(s.backward_s) for s in self.evaluation.stages]

    @cached_property
    def busiest(self) -> tuple[float, int, Edge | None]:
        """(share, stage, edge): the busiest edge of a stage, over its F and B; the worst stage."""
        found: list[tuple[float, int, Edge | None]] = [(0.0, 0, None)]
        for number, (edges, seconds) in enumerate(zip(self.stage_edges, self.stage_s, strict=True)):
            found += [(busy_s / seconds, number, edge) for edge, busy_s in edges.items()]
        return max(found, key=lambda entry: entry[0])

    @cached_property
    def limited_by(self) -> str:
        """What holds the plan up."""
        shared: dict[Edge, list[int]] = {}
        for number, edges in enumerate(self.stage_edges):
            for edge in edges:
                shared.setdefault(edge, []).append(number)
        wanted = {
            edge: sum(self.stage_edges[n][edge] for n in users)
            / max(self.stage_s[n] for n in users)
            for edge, users in shared.items()
            if len(users) > 1
        }
        worst = max(wanted, key=lambda edge: wanted[edge], default=None)
        waits = self.evaluation.edge_wait_s / self.evaluation.step_time_s
        if worst is not None and (wanted[worst] > 1.0 or waits > SHARED_WAIT):
            stages = ", ".join(map(str, shared[worst]))
            words = f"stages {stages} want {wanted[worst]:.0%} of {' > '.join(worst)}"
            return f"{words}, waits {waits:.1%}"
        share, number, busiest = self.busiest
        if busiest is None or share <= LINK_LIMITED:
            return "compute"
        return f"stage {number}: {self._carried(number, busiest)} on {' > '.join(busiest)}"

    def _carried(self, number: int, edge: Edge) -> str:
        """What an edge carries for a stage's first chunk, by kind."""
        evaluation = self.evaluation
        place = evaluation.stages[number]
        replica = evaluation.plan.layout.replicas[place.replica_idx]
        pipeline = evaluation.plan.batch.replicas[place.replica_idx].pipelines[0]
        stage = replica.stages[place.stage_idx]
        works = layer_works(
            price_book(evaluation.instance), stage, place.stage_idx, chunk_shape(pipeline.chunks[0])
        )
        policies = layer_policies(pipeline.recompute[place.stage_idx][0])
        total = place.prices[0].edges[edge]
        around = swapped = 0.0
        for work, policy in zip(works, policies, strict=True):
            for exchange in (*work.forward_exchanges, *work.backward_exchanges(policy)):
                num_bytes = exchange.edges.get(edge, 0.0)
                if exchange is work.ring_forward or exchange is work.ring_backward:
                    around += num_bytes
                else:
                    swapped += num_bytes
        parts = {"ring": around, "exchanges": swapped, "weights": total - around - swapped}
        return " + ".join(
            f"{name} {part / total:.0%}" for name, part in parts.items() if part > 0.005 * total
        )

    def cells(self) -> tuple[str, ...]:
        """Cells of the table after the plan's name."""
        step_s = self.evaluation.step_time_s
        pipeline = (self.pipeline_s - self.evaluation.pipeline_s) / step_s
        return (
            f"{step_s:.3f}", f"{self.timeline.step_time_s:.3f}", f"{self.difference:+.1%}",
            f"{pipeline:+.1%}", f"{self.difference - pipeline:+.1%}",
            f"{self.busiest[0]:.0%}", self.limited_by, str(self.timeline.num_plays),
            f"{self.wall_s:.1f}",
        )  # fmt: skip


def compare(instance: Instance, plan: Plan) -> Comparison:
    """Price and play one plan."""
    begin_s = time.perf_counter()
    timeline = simulate(instance, plan)
    return Comparison(evaluate(instance, plan), timeline, time.perf_counter() - begin_s)


def plans(instance: Instance, solve_limit_s: float | None) -> Iterator[tuple[str, Plan | None]]:
    """Every plan of a setting; equal ones once, under all their names.

    With a time limit the solver's, too; without a plan of its own it comes with its status.
    """
    found: dict[tuple[Layout, float], tuple[Plan, list[str]]] = {}

    def note(name: str, plan: Plan) -> None:
        key = plan.layout, evaluate(instance, plan).step_time_s
        found.setdefault(key, (plan, []))[1].append(name)

    if solve_limit_s is not None:
        from hexisolve.solvers.solve import solve

        result = solve(instance, time_limit_s=solve_limit_s, relative_gap=0.01)
        if result.plan is not None:
            note(f"solver ({result.status.value}, gap {result.gap:.2%})", result.plan)
        else:
            yield f"solver: {result.status.value}", None
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
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of every solve")
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
        for names, plan in plans(instance, options.limit if options.solver else None):
            if plan is None:
                lines.append(f"| {cluster} | {model} | {context} | {names} {'| ' * 9}|")
                print(lines[-1], flush=True)
                continue
            comparison = compare(instance, plan)
            differences.append((comparison.difference, comparison.limited_by.partition(" ")[0]))
            cells = (cluster, model, str(context), names, *comparison.cells())
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    kinds = {
        "compute": "limited by compute",
        "stage": "by links of one stage",
        "stages": "by links that stages share",
    }
    for wanted, words in kinds.items():
        own = [difference for difference, kind in differences if kind == wanted]
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

"""What `solve`, `compare` and `demo` share: a search with progress, and its result in words."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hexisolve.commands.arguments import (
    file_name,
    positive_seconds,
    relative_gap,
    seed_number,
    whole_number,
)
from hexisolve.commands.plans import plan_for
from hexisolve.commands.progress import progress
from hexisolve.commands.shell import Shell
from hexisolve.report.tables import make_table, percent
from hexisolve.units import format_seconds

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from hexisolve.data.instance import Instance
    from hexisolve.solvers.baselines import Baseline
    from hexisolve.solvers.result import Progress, Result

"""Of the time limit: a search that takes less was not stopped by it."""


@dataclass(frozen=True)
class Answer:
    """A solver's result beside the baselines of the same instance."""

    instance: Instance
    result: Result
    baselines: Mapping[str, Baseline]
    time_limit_s: float


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """How long and how well to search."""
    group = parser.add_argument_group("the search")
    group.add_argument(
        "--time-limit", metavar="S", type=positive_seconds, default=10.0,
        help="seconds; default %(default)g",
    )  # fmt: skip
    group.add_argument(
        "--gap", metavar="G", type=relative_gap, default=0.01,
        help="stop when the plan is proved this close to the best; default %(default)g",
    )  # fmt: skip
    group.add_argument(
        "--backend", metavar="NAME", default="cp-sat",
        help="who is asked before the dynamic program: cp-sat, cbc, highs, mathopt-gscip,"
        " mathopt-cp-sat, mathopt-highs, or where installed gurobi, cplex, xpress;"
        " dp: nobody; default %(default)s",
    )  # fmt: skip
    group.add_argument("--stages", metavar="P", type=whole_number, help="exactly P pipeline stages")
    group.add_argument(
        "--seed", metavar="N", type=seed_number, default=0, help="default %(default)s"
    )
    parser.set_defaults(no_baselines=False, start=None)


def add_start_argument(parser: argparse.ArgumentParser) -> None:
    """``--start PLAN``."""
    parser.add_argument(
        "--start", metavar="PLAN", type=file_name, help="plan file of this instance to start from"
    )


def search(instance: Instance, args: argparse.Namespace, shell: Shell) -> Answer:
    """Solve the instance as the arguments say, then price the baselines."""
    from hexisolve.solvers.baselines import baselines
    from hexisolve.solvers.solve import solve

    start = None
    if args.start is not None:
        start = plan_for(instance, "the instance given", args.start)
    with progress(shell, f"solving, {args.time_limit:g} s at most") as report:
        result = solve(
            instance,
            time_limit_s=args.time_limit,
            relative_gap=args.gap,
            backend=args.backend,
            stages=args.stages,
            start=start,
            seed=args.seed,
            on_progress=lambda event: report(progress_text(event)),
        )
        others: Mapping[str, Baseline] = {}
        if not args.no_baselines and result.limit != "interrupted":
            report("pricing the baselines")
            try:
                others = baselines(instance)
            except KeyboardInterrupt:
                logger.warning("interrupted: the plan is kept, the baselines are not priced")
    return Answer(instance, result, others, args.time_limit)


def answer_document(answer: Answer) -> dict[str, Any]:
    """The JSON of `solve`."""
    from hexisolve.plan.evaluate import evaluate
    from hexisolve.plan.io import plan_to_dict
    from hexisolve.report.price import price_document

    plan = answer.result.plan
    return result_document(answer.result) | {
        "baselines": {name: entry.step_time_s for name, entry in answer.baselines.items()},
        "plan": None if plan is None else plan_to_dict(plan),
        "price": None if plan is None else price_document(evaluate(answer.instance, plan)),
    }


def comparison_document(answer: Answer) -> dict[str, Any]:
    """The JSON of `compare`: the result, and every baseline with its ratio and reason."""
    best_s = answer.result.objective_s
    document = result_document(answer.result)
    document["baselines"] = {
        name: {
            "step_time_s": entry.step_time_s,
            "of_hexisolve": entry.step_time_s / best_s if entry.step_time_s and best_s else None,
            "one_replica": entry.one_replica,
            "reason": entry.reason,
        }
        for name, entry in answer.baselines.items()
    }
    return document


def result_document(result: Result) -> dict[str, Any]:
    """Status, limit, objective, bound and gap."""
    return {
        "status": result.status.value,
        "limit": result.limit,
        "objective_s": result.objective_s,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "wall_s": result.wall_s,
        "backend": result.backend,
        "diagnosis": result.diagnosis,
    }


def answer_parts(answer: Answer) -> list[RenderableType]:
    """The result, the baselines, the plan and where its time and memory go."""
    from hexisolve.report.plan import plan_parts

    parts: list[RenderableType] = [result_text(answer)]
    if answer.baselines:
        parts.append(comparison_table(answer))
    if answer.result.plan is not None:
        parts += plan_parts(answer.instance, answer.result.plan)
    return parts


def progress_text(event: Progress) -> str:
    """Where a running search stands, in one line."""
    best = "no plan yet" if event.incumbent_s is None else format_seconds(event.incumbent_s)
    gap = "" if event.gap is None else f", gap {percent(event.gap)}"
    return f"{event.elapsed_s:.1f} s: {best}, bound {format_seconds(event.bound_s)}{gap}"


def result_text(answer: Answer) -> str:
    """Status, objective, bound and gap; or why there is no plan."""
    result = answer.result
    stopped = f", stopped by the {result.limit} limit" if result.limit else ""
    if result.limit == "interrupted":
        stopped = ", interrupted"
    elif result.limit == "methods":
        found = "the gap stays open" if result.plan is not None else "none found a plan"
        stopped = f", every method has ended, {found}"
    lines = [f"{result.status.value} in {result.wall_s:.2f} s with {result.backend}{stopped}"]
    if result.objective_s is not None:
        lines.append(f"step time  {format_seconds(result.objective_s)}")
    if result.bound_s is not None:
        gap = f", gap {percent(result.gap)}" if result.gap is not None else ""
        lines.append(f"bound      {format_seconds(result.bound_s)}{gap}")
    if result.diagnosis:
        lines.append(str(result.diagnosis))
    return "\n".join(lines) + "\n"


def comparison_table(answer: Answer) -> Table:
    """The solver beside every baseline; one that does not fit never counts."""
    best_s = answer.result.objective_s
    table = make_table(
        f"{answer.instance.model.name} on {answer.instance.cluster.name}",
        ["", "step time>", "tokens/s>", "of hexisolve>", "why~"],
    )
    num_tokens = answer.instance.workload.num_tokens

    def add(name: str, step_time_s: float | None, why: str) -> None:
        if step_time_s is None:
            table.add_row(name, "does not fit", "", "", why)
            return
        ratio = f"{step_time_s / best_s:.3f} x" if best_s else ""
        table.add_row(
            name, format_seconds(step_time_s), f"{num_tokens / step_time_s:,.0f}", ratio, why
        )

    add("hexisolve", best_s, "" if best_s else answer.result.status.value)
    for name, entry in answer.baselines.items():
        add(name, entry.step_time_s, entry.reason)
    fits = sum(entry.step_time_s is not None for entry in answer.baselines.values())
    table.caption = f"{fits} of {len(answer.baselines)} baselines fit"
    return table

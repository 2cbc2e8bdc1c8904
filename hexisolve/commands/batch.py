"""``hexisolve batch``: chunks, schedule and recompute of one iteration on a plan's layout."""

from __future__ import annotations

import argparse
from dataclasses import replace

from hexisolve.commands.arguments import (
    file_path,
    positive_seconds,
    read_lengths,
    relative_gap,
    seed_number,
    whole_number,
)
from hexisolve.commands.plans import add_plan_arguments, plan_from
from hexisolve.commands.shell import Shell, require_writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_plan_arguments(parser)
    parser.add_argument(
        "--lengths", metavar="FILE", type=file_path, required=True,
        help="length of every sequence of the batch in tokens, one per line",
    )  # fmt: skip
    parser.add_argument(
        "--context", metavar="N", type=whole_number, help="cut longer sequences off at N tokens"
    )
    parser.add_argument(
        "--time-limit", metavar="S", type=positive_seconds, default=1.0,
        help="seconds for the recompute program (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--gap", metavar="G", type=relative_gap, default=0.005,
        help="recompute this close to its bound is good enough (default 0.005)",
    )  # fmt: skip
    parser.add_argument("--seed", metavar="N", type=seed_number, default=0, help="default 0")
    parser.add_argument(
        "-o", "--output", metavar="PLAN", type=file_path, help="write the plan of the batch here"
    )


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Plan the batch; print the answer; write the plan."""
    from hexisolve.plan.evaluate import evaluate
    from hexisolve.plan.io import write_plan
    from hexisolve.report.batch import batch_document, batch_parts
    from hexisolve.solvers.elastic.batch import plan_batch

    require_writable(args.output)
    lengths = read_lengths(args.lengths)
    if args.context is not None:
        lengths = tuple(min(length, args.context) for length in lengths)
    instance, given = plan_from(args)
    workload = replace(
        instance.workload, context_tokens=None, batch_sequences=None, lengths=lengths
    )
    instance = replace(instance, workload=workload)
    result = plan_batch(
        instance, given.layout, time_limit_s=args.time_limit, relative_gap=args.gap, seed=args.seed
    )
    if args.output is not None:
        write_plan(args.output, instance, result.plan)
        shell.say(f"plan written to {args.output}")
    evaluation = evaluate(instance, result.plan)
    figures = {
        "step_time_s": result.step_time_s,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "fixed_bound_s": result.fixed_bound_s,
        "fixed_gap": result.fixed_gap,
        "rule_wall_s": result.rule_wall_s,
        "wall_s": result.wall_s,
    }
    if shell.is_json:
        shell.write_json(batch_document(evaluation, figures))
    else:
        shell.show(*batch_parts(evaluation, figures))
    return 0

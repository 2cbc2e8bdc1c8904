"""``hexisolve simulate``: play the plan's programs on the modelled cluster."""

from __future__ import annotations

import argparse

from hexisolve.commands.arguments import file_path
from hexisolve.commands.plans import add_plan_arguments, legal_plan_from
from hexisolve.commands.shell import Shell, require_writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_plan_arguments(parser)
    parser.add_argument(
        "--trace", metavar="T.json", type=file_path, help="write a trace that ui.perfetto.dev opens"
    )


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Simulate; print step time, breakdown and timeline."""
    from hexisolve.plan.evaluate import evaluate
    from hexisolve.program.clock import simulate
    from hexisolve.report.price import price_tables
    from hexisolve.report.timeline import timeline_document, timeline_parts

    require_writable(args.trace)
    instance, plan = legal_plan_from(args)
    timeline = simulate(instance, plan)
    evaluation = evaluate(instance, plan)
    if args.trace is not None:
        timeline.write_trace(args.trace)
        shell.say(f"trace written to {args.trace}")
    if shell.is_json:
        shell.write_json(timeline_document(timeline, evaluation))
    else:
        shell.show(*timeline_parts(timeline, evaluation), *price_tables(evaluation))
    return 0

"""``hexisolve simulate``: play the plan's programs on the modelled cluster."""

from __future__ import annotations

import argparse

from hexisolve.commands.plans import add_plan_arguments, legal_plan_from
from hexisolve.commands.shell import Shell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_plan_arguments(parser)


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Simulate; print step time, breakdown and timeline."""
    from hexisolve.plan.evaluate import evaluate
    from hexisolve.program.clock import simulate
    from hexisolve.report.timeline import timeline_document, timeline_parts

    instance, plan = legal_plan_from(args)
    timeline = simulate(instance, plan)
    evaluation = evaluate(instance, plan)
    if shell.is_json:
        shell.write_json(timeline_document(timeline, evaluation))
    else:
        shell.show(*timeline_parts(timeline, evaluation))
    return 0

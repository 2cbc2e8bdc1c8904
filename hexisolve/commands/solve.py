"""``hexisolve solve``: find the best plan, with a proven bound."""

from __future__ import annotations

import argparse

from hexisolve.commands.arguments import add_instance_arguments, file_path, instance_from
from hexisolve.commands.search import (
    add_search_arguments,
    add_start_argument,
    answer_document,
    answer_parts,
    search,
)
from hexisolve.commands.shell import Shell, require_writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_instance_arguments(parser)
    add_search_arguments(parser)
    add_start_argument(parser)
    parser.add_argument(
        "--no-baselines", action="store_true", help="do not price the baselines afterwards"
    )
    parser.add_argument(
        "-o", "--output", metavar="PLAN", type=file_path, help="write the plan here"
    )


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Solve; print the answer and why it is the answer; write the plan."""
    from hexisolve.plan.io import write_plan

    require_writable(args.output)
    instance = instance_from(args)
    answer = search(instance, args, shell)
    plan = answer.result.plan
    if plan is not None and args.output is not None:
        write_plan(args.output, instance, plan)
        shell.say(f"plan written to {args.output}")
    if shell.is_json:
        shell.write_json(answer_document(answer))
    else:
        shell.show(*answer_parts(answer))
    return 0 if plan is not None else 1

"""``hexisolve compare``: the solver beside every baseline, in one table."""

from __future__ import annotations

import argparse

from hexisolve.commands.arguments import add_instance_arguments, instance_from
from hexisolve.commands.search import (
    add_search_arguments,
    add_start_argument,
    comparison_document,
    comparison_table,
    result_text,
    search,
)
from hexisolve.commands.shell import Shell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_instance_arguments(parser)
    add_search_arguments(parser)
    add_start_argument(parser)


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Solve, price the baselines, print one table."""
    answer = search(instance_from(args), args, shell)
    if shell.is_json:
        shell.write_json(comparison_document(answer))
    else:
        shell.show(result_text(answer), comparison_table(answer))
    return 0 if answer.result.plan is not None else 1

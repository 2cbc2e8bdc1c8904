"""``hexisolve compare``: the solver beside every baseline, in one table."""

from __future__ import annotations

import argparse

from hexisolve.commands.arguments import add_instance_arguments, instance_from
from hexisolve.commands.search import (
    add_search_arguments,
    answer_document,
    comparison_table,
    result_text,
    search,
)
from hexisolve.commands.shell import Shell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_instance_arguments(parser)
    add_search_arguments(parser)


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Solve, price the baselines, print one table."""
    answer = search(instance_from(args), args, shell)
    if shell.is_json:
        document = answer_document(answer)
        shown = ("status", "limit", "objective_s", "bound_s", "gap", "wall_s", "backend",
                 "diagnosis")  # fmt: skip
        shell.write_json(
            {key: document[key] for key in shown}
            | {
                "baselines": {
                    name: {
                        "step_time_s": entry.step_time_s,
                        "of_hexisolve": None
                        if entry.step_time_s is None or answer.result.objective_s is None
                        else entry.step_time_s / answer.result.objective_s,
                        "one_replica": entry.one_replica,
                        "reason": entry.reason,
                    }
                    for name, entry in answer.baselines.items()
                }
            }
        )
    else:
        shell.show(result_text(answer.result), comparison_table(answer))
    return 0 if answer.result.plan is not None else 1

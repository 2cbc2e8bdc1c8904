"""``hexisolve check``: every rule a plan breaks, in words; exit 3 if there is any."""

from __future__ import annotations

import argparse

from hexisolve.commands.plans import add_plan_arguments, plan_from
from hexisolve.commands.shell import Shell
from hexisolve.report.tables import make_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_plan_arguments(parser)


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Check the plan; print the violations."""
    from hexisolve.plan.check import check_plan

    instance, plan = plan_from(args)
    violations = check_plan(instance, plan)
    if shell.is_json:
        shell.write_json(
            {
                "valid": not violations,
                "violations": [
                    {"rule": violation.rule, "where": violation.where, "message": str(violation)}
                    for violation in violations
                ],
            }
        )
    elif violations:
        table = make_table(f"{len(violations)} rules are broken", ["rule", "violation~"])
        for violation in violations:
            table.add_row(violation.rule, str(violation))
        shell.show(table)
    else:
        shell.show("the plan breaks no rule")
    return 3 if violations else 0

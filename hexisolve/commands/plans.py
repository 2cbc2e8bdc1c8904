"""Plans as arguments: ``[INSTANCE] PLAN``, and the answer when they do not belong together."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hexisolve.commands.arguments import file_name
from hexisolve.commands.kinds import read_instance_named, read_plan_named
from hexisolve.errors import InstanceError, PlanError, Problem

if TYPE_CHECKING:
    from hexisolve.data.instance import Instance
    from hexisolve.plan.plan import Plan

_SHOWN = 12


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """``[INSTANCE] PLAN``."""
    parser.add_argument(
        "instance", nargs="?", metavar="INSTANCE", type=file_name,
        help="instance file or bundled name; without it, the instance the plan file carries",
    )  # fmt: skip
    add_plan_argument(parser)


def add_plan_argument(parser: argparse.ArgumentParser) -> None:
    """``PLAN``."""
    parser.add_argument(
        "plan", metavar="PLAN", type=file_name, help="plan file, as written by `solve --output`"
    )


def plan_from(args: argparse.Namespace) -> tuple[Instance, Plan]:
    """The instance and the plan of the arguments.

    Raises
    ------
    InstanceError
        For files that cannot be read, and when the plan was made for another instance.
    """
    if args.instance is None:
        file = read_plan_named(args.plan)
        return file.instance, file.plan
    instance = read_instance_named(args.instance)
    return instance, plan_for(instance, args.instance, args.plan)


def plan_for(instance: Instance, instance_name: str, plan_name: str) -> Plan:
    """The plan of a file that was made for this instance.

    Raises
    ------
    InstanceError
        For a file that cannot be read, and for a plan for another instance, field by field.
    """
    file = read_plan_named(plan_name)
    if instance.digest != file.instance.digest:
        raise InstanceError(_differences(instance, file.instance, instance_name, plan_name))
    return file.plan


def _differences(
    given: Instance, planned: Instance, instance_file: str, plan_file: str
) -> list[Problem]:
    """Where two instances differ, field by field."""
    found = list(_walk("", given.to_dict(), planned.to_dict()))
    problems = [
        Problem(field, "", f"is {ours} in {instance_file}, {theirs} in the plan's own instance",
                file=plan_file)
        for field, ours, theirs in found[:_SHOWN]
    ]  # fmt: skip
    more = f", with {len(found) - _SHOWN} more differences" if len(found) > _SHOWN else ""
    problems.append(
        Problem("instance", "", f"the plan was made for another instance{more}",
                "solve this instance again, or use the instance that the plan carries", plan_file)
    )  # fmt: skip
    return problems


def _walk(field: str, ours: Any, theirs: Any) -> Any:
    """(field, our value, their value) of every leaf that differs."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in dict.fromkeys([*ours, *theirs]):
            yield from _walk(f"{field}.{key}".lstrip("."), ours.get(key), theirs.get(key))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from _walk(f"{field}[{index}]", a, b)
    elif ours != theirs:
        yield field, _short(ours), _short(theirs)


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def legal_plan_from(args: argparse.Namespace) -> tuple[Instance, Plan]:
    """Like `plan_from`, for commands that need a plan without violations.

    Raises
    ------
    PlanError
        With the violations.
    """
    from hexisolve.plan.check import check_plan

    instance, plan = plan_from(args)
    violations = check_plan(instance, plan)
    if violations:
        raise PlanError(violations)
    return instance, plan

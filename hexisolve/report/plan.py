"""A plan with its price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hexisolve.report.price import price_document, price_tables

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hexisolve.data.instance import Instance
    from hexisolve.plan.plan import Plan
    from hexisolve.plan.violation import Violation


def plan_document(instance: Instance, plan: Plan) -> dict[str, Any]:
    """JSON form: the plan, the digest of its instance, its violations and its price.

    The price is null when the plan is too broken to have one.
    """
    from hexisolve.plan.check import check_plan
    from hexisolve.plan.evaluate import evaluate
    from hexisolve.plan.io import plan_to_dict

    violations = check_plan(instance, plan)
    return {
        "instance": {
            "digest": instance.digest,
            "cluster": instance.cluster.name,
            "model": instance.model.name,
            "workload": instance.workload.to_dict(),
        },
        "plan": plan_to_dict(plan),
        "violations": [str(violation) for violation in violations],
        "price": price_document(evaluate(instance, plan)) if has_price(violations) else None,
    }


def plan_parts(instance: Instance, plan: Plan) -> list[RenderableType]:
    """The tree, what it breaks, and the tables of its price."""
    from hexisolve.plan.check import check_plan
    from hexisolve.plan.evaluate import evaluate

    parts: list[RenderableType] = [f"{plan}\n"]
    violations = check_plan(instance, plan)
    if violations:
        parts.append(f"{len(violations)} broken rules:")
        parts += [str(violation) for violation in violations]
    if has_price(violations):
        parts += price_tables(evaluate(instance, plan))
    return parts


def has_price(violations: Sequence[Violation]) -> bool:
    """Whether a plan with these violations can be priced: only memory may be broken."""
    return all(violation.rule == "memory" for violation in violations)

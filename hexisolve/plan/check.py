"""The judge of plans: every rule a plan can break, told in words with numbers.

Independent of every formulation: it reads the instance and the plan, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from hexisolve.data.instance import Instance
from hexisolve.plan.check_batch import check_batch
from hexisolve.plan.check_layout import check_layout
from hexisolve.plan.plan import SCHEMA_VERSION, Plan
from hexisolve.plan.price_book import price_book
from hexisolve.plan.step_memory import MemoryItems, stage_memory
from hexisolve.plan.violation import Violation
from hexisolve.units import format_bytes

__all__ = ["RULES", "Violation", "check_plan"]

RULES: tuple[str, ...] = (
    "schema",
    "replicas",
    "stage-count",
    "empty-stage",
    "layers",
    "ring",
    "ring-kind",
    "zero",
    "zero3-gradients",
    "devices",
    "device-once",
    "connected",
    "dtype",
    "heads",
    "tokens",
    "state-shares",
    "batch-shape",
    "chunks",
    "tokens-covered",
    "one-pipeline",
    "one-slice",
    "full-attention",
    "schedule",
    "forward-first",
    "slice-order",
    "backward-order",
    "deadlock",
    "recompute",
    "policy",
    "offload",
    "pieces",
    "memory",
)
# Rules that a plan may break and still have a memory that can be computed.
_HARMLESS_TO_MEMORY = frozenset(
    {"schema", "zero", "connected", "dtype", "device-once", "deadlock", "tokens-covered",
     "one-slice", "one-pipeline", "full-attention", "slice-order", "backward-order"}
)  # fmt: skip


def check_plan(instance: Instance, plan: Plan) -> list[Violation]:
    """All violations of a plan, empty when it is legal.

    Memory is judged when the rest of the plan is well formed enough to say what it needs.
    """
    found = []
    if plan.schema_version != SCHEMA_VERSION:
        message = f"schema version {plan.schema_version!r} is unknown; this is {SCHEMA_VERSION}"
        found.append(Violation("schema", "plan", message))
    found += check_layout(instance, plan.layout)
    found += check_batch(instance, plan)
    if all(violation.rule in _HARMLESS_TO_MEMORY for violation in found):
        found += _memory(instance, plan)
    return found


def _memory(instance: Instance, plan: Plan) -> Iterator[Violation]:
    """Every device holds what its rank needs at its peak."""
    book = price_book(instance)
    for replica_idx, stage_idx, stage in plan.layout.stages():
        pipelines = plan.batch.replicas[replica_idx].pipelines
        memory = stage_memory(book, plan.layout, replica_idx, stage_idx, pipelines)
        for rank, items in zip(stage.ranks, memory, strict=True):
            usable = instance.cluster.device(rank.device).memory_bytes - items.reserve
            if items.needed_bytes > usable:
                where = f"replica {replica_idx}, stage {stage_idx} on {rank.device}"
                yield Violation("memory", where, _needs(items, usable))


def _needs(items: MemoryItems, usable: int) -> str:
    parts = ", ".join(
        f"{name} {format_bytes(getattr(items, name))}"
        for name in ("states", "activations", "kv", "transient", "buffers", "logits")
        if getattr(items, name)
    )
    return (
        f"needs {format_bytes(items.needed_bytes)} ({items.needed_bytes} bytes) at its peak, "
        f"has {format_bytes(usable)} ({usable} bytes): {parts}"
    )

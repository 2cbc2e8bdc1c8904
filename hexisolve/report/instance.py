"""An instance: its workload and the constants of the cost model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hexisolve.report.cluster import cluster_document
from hexisolve.report.model import model_document
from hexisolve.report.tables import make_table
from hexisolve.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

    from hexisolve.data.instance import Instance


def instance_document(instance: Instance) -> dict[str, Any]:
    """JSON form: the parts as `show` gives them one by one, and the digest."""
    return {
        "digest": instance.digest,
        "cluster": cluster_document(instance.cluster),
        "model": model_document(instance.model),
        "workload": instance.workload.to_dict(),
        "cost": instance.cost.to_dict(),
    }


def workload_tables(instance: Instance) -> list[Table]:
    """The sequences of a step, and the constants with the defaults marked."""
    return [_workload(instance), _constants(instance)]


def _workload(instance: Instance) -> Table:
    workload = instance.workload
    lengths = workload.sequence_lengths
    table = make_table("workload", ["", "~"])
    table.show_header = False
    longest, shortest = max(lengths), min(lengths)
    spread = f"{longest:,}" if longest == shortest else f"{shortest:,} to {longest:,}"
    for name, value in (
        ("sequences in a step", f"{len(lengths):,} of {spread} tokens"),
        ("tokens in a step", f"{workload.num_tokens:,}"),
        ("dtype", workload.dtype),
        ("attention", workload.attention),
        ("ZeRO modes allowed", ", ".join(map(str, workload.zero))),
        ("token block", str(workload.block_tokens)),
    ):
        table.add_row(name, value)
    return table


def _constants(instance: Instance) -> Table:
    from hexisolve.data.constants import CostConstants

    table = make_table("constants of the cost model", ["", ">", "source"])
    defaults = CostConstants().to_dict()
    for name, value in instance.cost.to_dict().items():
        shown = f"{value:g}"
        if name.endswith("_bytes") and value >= 1024:
            shown = format_bytes(value)
        elif name.endswith("_s"):
            shown = format_seconds(value)
        table.add_row(name, shown, "estimate" if value == defaults[name] else "given")
    return table

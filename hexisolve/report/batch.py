"""The plan of one batch: how good it is, its chunks, what every stage recomputes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hexisolve.plan.plan import POLICY_ORDER, Pipeline, Slice
from hexisolve.report.price import price_tables
from hexisolve.report.tables import make_table
from hexisolve.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hexisolve.plan.evaluation import Evaluation

_SHOWN = 12


def batch_document(evaluation: Evaluation, figures: Mapping[str, float | None]) -> dict[str, Any]:
    """JSON form: figures, counts, the plan."""
    from hexisolve.plan.io import plan_to_dict

    workload = evaluation.instance.workload
    return {
        **figures,
        "bubble_share": evaluation.bubble_share,
        "tokens_per_s": evaluation.tokens_per_s,
        "num_sequences": len(workload.sequence_lengths),
        "num_tokens": workload.num_tokens,
        "num_chunks": sum(len(pipeline.chunks) for pipeline in _pipelines(evaluation)),
        "plan": plan_to_dict(evaluation.plan),
    }


def batch_parts(
    evaluation: Evaluation, figures: Mapping[str, float | None]
) -> list[RenderableType]:
    """What a person reads: the answer, the chunks, recompute by stage, the price."""
    workload = evaluation.instance.workload
    fixed = figures["fixed_gap"]
    known = "not known" if fixed is None else f"{fixed:.2%}"
    step, bound = (format_seconds(float(figures[key] or 0.0)) for key in ("step_time_s", "bound_s"))
    parts: list[RenderableType] = [
        f"step {step} for {len(workload.sequence_lengths)} sequences of {workload.num_tokens} "
        f"tokens, bubbles {evaluation.bubble_share:.1%}\n"
        f"gap {figures['gap']:.2%} to the bound of every choice of chunks ({bound}); of recompute "
        f"alone, chunks and order fixed: {known}\n"
        f"planned in {figures['wall_s']:.2f} s, the rule alone in {figures['rule_wall_s']:.2f} s\n"
    ]
    for name, pipeline in zip(_names(evaluation), _pipelines(evaluation), strict=True):
        parts.append(f"{name}: {len(pipeline.chunks)} chunks, in order of their forwards")
        parts += [_chunks(pipeline, workload.sequence_lengths), _recompute(pipeline)]
    return [*parts, *price_tables(evaluation)]


def _pipelines(evaluation: Evaluation) -> list[Pipeline]:
    return [p for batch in evaluation.plan.batch.replicas for p in batch.pipelines]


def _names(evaluation: Evaluation) -> list[str]:
    return [
        f"replica {replica_idx}, pipeline {pipeline_idx}"
        for replica_idx, batch in enumerate(evaluation.plan.batch.replicas)
        for pipeline_idx in range(len(batch.pipelines))
    ]


def _chunks(pipeline: Pipeline, lengths: tuple[int, ...]) -> RenderableType:
    table = make_table(
        "chunks",
        ["chunk", "tokens", "slice of a cut sequence~", "whole sequences"],
    )
    for idx, chunk in enumerate(pipeline.chunks[:_SHOWN]):
        cut = [part for part in chunk.slices if part.num_tokens < lengths[part.sequence]]
        shown = ", ".join(_shown(part, lengths) for part in cut)
        whole = len(chunk.slices) - len(cut)
        table.add_row(str(idx), str(chunk.num_tokens), shown or "-", str(whole))
    if len(pipeline.chunks) > _SHOWN:
        table.add_row("...", "", f"{len(pipeline.chunks) - _SHOWN} more", "")
    return table


def _shown(part: Slice, lengths: tuple[int, ...]) -> str:
    return f"sequence {part.sequence}: {part.start}..{part.stop} of {lengths[part.sequence]}"


def _recompute(pipeline: Pipeline) -> RenderableType:
    table = make_table("layers by policy, all chunks", ["stage", *POLICY_ORDER])
    for stage_idx, row in enumerate(pipeline.recompute):
        counts: Counter[str] = Counter()
        for own in row:
            counts.update(own)
        table.add_row(str(stage_idx), *(str(counts[policy]) for policy in POLICY_ORDER))
    return table

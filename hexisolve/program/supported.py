"""Parts of legal plans that have no program yet, refused by name."""

from __future__ import annotations

from collections.abc import Iterator

from hexisolve.data.instance import Instance
from hexisolve.errors import UnsupportedPlanError
from hexisolve.plan.plan import Plan


def refuse_unsupported(instance: Instance, plan: Plan) -> None:
    """Raise UnsupportedPlanError with every part of `plan` that cannot be compiled."""
    _refuse([*_stages(instance, plan), *_windows(instance), *_slices(instance, plan)])


def refuse_slices(instance: Instance, plan: Plan) -> None:
    """Raise UnsupportedPlanError when sequences are cut in slices."""
    _refuse(list(_slices(instance, plan)))


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UnsupportedPlanError("\n".join(problems))


def _stages(instance: Instance, plan: Plan) -> Iterator[str]:
    for replica_idx, stage_idx, stage in plan.layout.stages():
        where = f"replica {replica_idx} stage {stage_idx}"
        if stage.ring_kind != "kv" and len(stage.ring) > 1:
            yield f"{where}: rings in which q travels have no program yet; use kv"
        for group_idx, group in enumerate(stage.ring):
            num_heads = sum(rank.num_q_heads for rank in group.ranks)
            for layer in range(*stage.layers):
                expected = instance.model.layers[layer].attention.num_q_heads
                if num_heads != expected:
                    yield (
                        f"{where} group {group_idx}: {num_heads} query heads, layer {layer} has "
                        f"{expected}; plans have one head split for all layers"
                    )
                    break


def _windows(instance: Instance) -> Iterator[str]:
    has_windows = any(layer.attention.window_tokens for layer in instance.model.layers)
    if has_windows and instance.workload.attention == "full":
        yield "sliding windows have a program only with causal attention"


def _slices(instance: Instance, plan: Plan) -> Iterator[str]:
    lengths = instance.workload.sequence_lengths
    for replica_idx, batch in enumerate(plan.batch.replicas):
        for pipeline in batch.pipelines:
            for idx, chunk in enumerate(pipeline.chunks):
                for part in chunk.slices:
                    if (part.start, part.stop) != (0, lengths[part.sequence]):
                        yield (
                            f"replica {replica_idx} chunk {idx}: tokens {part.start}..{part.stop} "
                            f"of sequence {part.sequence} ({lengths[part.sequence]} long): slices "
                            "have no program yet; use whole sequences"
                        )

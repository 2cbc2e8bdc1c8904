"""Plans as plain documents and back, strictly: every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexisolve.data.reading import Fields
from hexisolve.plan.plan import (
    SCHEMA_VERSION,
    BatchPlan,
    Chunk,
    HeadGroup,
    Layout,
    Pipeline,
    Plan,
    Rank,
    Replica,
    ReplicaBatch,
    Slice,
    Stage,
)

_LARGE = 2**53


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """JSON form of a plan; slices are ``[sequence, start, stop]``."""
    return {
        "schema_version": plan.schema_version,
        "layout": {
            "replicas": [
                {"stages": [_stage_to_dict(stage) for stage in replica.stages]}
                for replica in plan.layout.replicas
            ]
        },
        "batch": {
            "replicas": [
                {"pipelines": [_pipeline_to_dict(pipeline) for pipeline in batch.pipelines]}
                for batch in plan.batch.replicas
            ]
        },
    }


def _stage_to_dict(stage: Stage) -> dict[str, Any]:
    return {
        "layers": list(stage.layers),
        "ring_kind": stage.ring_kind,
        "zero": stage.zero,
        "zero3_gradients": stage.zero3_gradients,
        "ring": [
            {
                "ranks": [
                    {
                        "device": rank.device,
                        "tokens": rank.tokens,
                        "q_heads": list(rank.q_heads),
                        "state_share": rank.state_share,
                    }
                    for rank in group.ranks
                ]
            }
            for group in stage.ring
        ],
    }


def _pipeline_to_dict(pipeline: Pipeline) -> dict[str, Any]:
    document: dict[str, Any] = {
        "chunks": [_chunk_to_dict(chunk) for chunk in pipeline.chunks],
        "schedule": [list(row) for row in pipeline.schedule],
        "recompute": [[dict(counts) for counts in row] for row in pipeline.recompute],
    }
    if pipeline.offload:
        document["offload"] = [list(row) for row in pipeline.offload]
    return document


def _chunk_to_dict(chunk: Chunk) -> dict[str, Any]:
    document: dict[str, Any] = {"slices": [_triple(part) for part in chunk.slices]}
    if chunk.pieces is not None:
        document["pieces"] = [
            [[_triple(part) for part in own] for own in stage] for stage in chunk.pieces
        ]
    return document


def _triple(part: Slice) -> list[int]:
    return [part.sequence, part.start, part.stop]


def plan_from_dict(document: Mapping[str, Any], file: str | None = None) -> Plan:
    """Inverse of `plan_to_dict`.

    Types, keys and the schema version are judged here; whether the plan is legal is for
    `check_plan`.

    Raises
    ------
    InstanceError
        With every problem of the document.
    """
    fields = Fields(file)
    plan = read_plan_document(document, "plan", fields)
    fields.finish()
    return plan


def read_plan_document(value: object, where: str, fields: Fields) -> Plan:
    """Read a plan, noting problems in `fields`."""
    document = fields.mapping(value, where, ("schema_version", "layout", "batch"))
    check_schema(document.get("schema_version"), f"{where}.schema_version", fields)
    layout = _section(document, "layout", where, fields)
    batch = _section(document, "batch", where, fields)
    replicas = fields.items(layout.get("replicas"), f"{where}.layout.replicas")
    batches = fields.items(batch.get("replicas"), f"{where}.batch.replicas")
    return Plan(
        Layout(
            tuple(
                _replica(entry, f"{where}.layout.replicas[{idx}]", fields)
                for idx, entry in enumerate(replicas)
            )
        ),
        BatchPlan(
            tuple(
                _replica_batch(entry, f"{where}.batch.replicas[{idx}]", fields)
                for idx, entry in enumerate(batches)
            )
        ),
    )


def check_schema(version: object, where: str, fields: Fields) -> None:
    """Note a schema version that this package does not know."""
    if version == SCHEMA_VERSION and not isinstance(version, bool):
        return
    is_newer = isinstance(version, int) and version > SCHEMA_VERSION
    remedy = "update hexisolve" if is_newer else f"write {SCHEMA_VERSION}"
    message = "is newer than this package" if is_newer else "is not known"
    fields.problem(where, "missing" if version is None else version, message, remedy)


def _section(
    document: Mapping[str, Any], name: str, where: str, fields: Fields
) -> Mapping[str, Any]:
    return fields.mapping(document.get(name), f"{where}.{name}", ("replicas",))


def _replica(value: object, where: str, fields: Fields) -> Replica:
    document = fields.mapping(value, where, ("stages",))
    stages = fields.items(document.get("stages"), f"{where}.stages")
    return Replica(
        tuple(_stage(entry, f"{where}.stages[{idx}]", fields) for idx, entry in enumerate(stages))
    )


def _stage(value: object, where: str, fields: Fields) -> Stage:
    known = ("layers", "ring_kind", "zero", "zero3_gradients", "ring")
    document = fields.mapping(value, where, known)
    groups = fields.items(document.get("ring"), f"{where}.ring")
    return Stage(
        layers=_range(document.get("layers"), f"{where}.layers", fields),
        ring=tuple(
            _group(entry, f"{where}.ring[{idx}]", fields) for idx, entry in enumerate(groups)
        ),
        ring_kind=fields.text(document.get("ring_kind", "kv"), f"{where}.ring_kind"),  # type: ignore[arg-type]
        zero=_whole(document.get("zero", 0), f"{where}.zero", fields),  # type: ignore[arg-type]
        zero3_gradients=fields.text(  # type: ignore[arg-type]
            document.get("zero3_gradients", "step"), f"{where}.zero3_gradients"
        ),
    )


def _group(value: object, where: str, fields: Fields) -> HeadGroup:
    document = fields.mapping(value, where, ("ranks",))
    ranks = fields.items(document.get("ranks"), f"{where}.ranks")
    return HeadGroup(
        tuple(_rank(entry, f"{where}.ranks[{idx}]", fields) for idx, entry in enumerate(ranks))
    )


def _rank(value: object, where: str, fields: Fields) -> Rank:
    document = fields.mapping(value, where, ("device", "tokens", "q_heads", "state_share"))
    return Rank(
        device=fields.text(document.get("device"), f"{where}.device"),
        tokens=_whole(document.get("tokens"), f"{where}.tokens", fields),
        q_heads=_range(document.get("q_heads"), f"{where}.q_heads", fields),
        state_share=_whole(document.get("state_share", 1), f"{where}.state_share", fields),
    )


def _replica_batch(value: object, where: str, fields: Fields) -> ReplicaBatch:
    document = fields.mapping(value, where, ("pipelines",))
    pipelines = fields.items(document.get("pipelines"), f"{where}.pipelines")
    return ReplicaBatch(
        tuple(
            _pipeline(entry, f"{where}.pipelines[{idx}]", fields)
            for idx, entry in enumerate(pipelines)
        )
    )


def _pipeline(value: object, where: str, fields: Fields) -> Pipeline:
    document = fields.mapping(value, where, ("chunks", "schedule", "recompute", "offload"))
    chunks = fields.items(document.get("chunks"), f"{where}.chunks")
    return Pipeline(
        chunks=tuple(
            _chunk(entry, f"{where}.chunks[{idx}]", fields) for idx, entry in enumerate(chunks)
        ),
        schedule=tuple(
            tuple(fields.text(entry, place) for entry, place in row)
            for row in _table(document.get("schedule"), f"{where}.schedule", fields)
        ),
        recompute=tuple(
            tuple(_counts(entry, place, fields) for entry, place in row)
            for row in _table(document.get("recompute"), f"{where}.recompute", fields)
        ),
        offload=tuple(
            tuple(_whole(entry, place, fields) for entry, place in row)
            for row in _table(document.get("offload", []), f"{where}.offload", fields)
        ),
    )


def _table(value: object, where: str, fields: Fields) -> list[list[tuple[Any, str]]]:
    """Rows of (entry, its place)."""
    return [
        [
            (entry, f"{where}[{row_idx}][{idx}]")
            for idx, entry in enumerate(fields.items(row, f"{where}[{row_idx}]"))
        ]
        for row_idx, row in enumerate(fields.items(value, where))
    ]


def _counts(value: object, where: str, fields: Fields) -> dict[Any, int]:
    document = fields.mapping(value, where)
    return {key: _whole(count, f"{where}.{key}", fields) for key, count in document.items()}


def _chunk(value: object, where: str, fields: Fields) -> Chunk:
    document = fields.mapping(value, where, ("slices", "pieces"))
    slices = _slices(document.get("slices"), f"{where}.slices", fields)
    if document.get("pieces") is None:
        return Chunk(slices)
    stages = _table(document["pieces"], f"{where}.pieces", fields)
    return Chunk(
        slices,
        tuple(tuple(_slices(own, place, fields) for own, place in stage) for stage in stages),
    )


def _slices(value: object, where: str, fields: Fields) -> tuple[Slice, ...]:
    parts = []
    for idx, entry in enumerate(fields.items(value, where)):
        numbers = fields.items(entry, f"{where}[{idx}]")
        if len(numbers) != 3:
            fields.problem(f"{where}[{idx}]", entry, "must be [sequence, start, stop]")
            continue
        parts.append(Slice(*(_whole(number, f"{where}[{idx}]", fields) for number in numbers)))
    return tuple(parts)


def _range(value: object, where: str, fields: Fields) -> tuple[int, int]:
    numbers = fields.items(value, where)
    if len(numbers) != 2:
        fields.problem(where, value, "must be [first, one past the last]")
        return (0, 0)
    first, stop = (_whole(number, where, fields) for number in numbers)
    return (first, stop)


def _whole(value: object, where: str, fields: Fields) -> int:
    return fields.count(value, where, low=0, high=_LARGE)

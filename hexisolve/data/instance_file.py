"""``instance.yaml``: a cluster, a model and a workload, each by name, by path or inline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hexisolve.data.cluster import Cluster, check_dtype
from hexisolve.data.constants import CostConstants
from hexisolve.data.instance import Instance
from hexisolve.data.library import resolve_path
from hexisolve.data.model_spec import ModelSpec
from hexisolve.data.reading import Fields, read_document
from hexisolve.data.workload import Workload
from hexisolve.errors import InstanceError, Problem

INSTANCE_KEYS = ("schema_version", "name", "description", "cluster", "model", "workload", "cost")
SCHEMA_VERSION = 1
_Part = TypeVar("_Part")


def resolve_cluster(name_or_path: str | Path, base: Path | None = None) -> Cluster:
    """Return the cluster of a bundled name or a file (relative to `base` when given).

    Raises
    ------
    InstanceError
        Naming the nearest bundled clusters, or every problem of the file.
    """
    return Cluster.read(resolve_path("clusters", name_or_path, base))


def resolve_model(name_or_path: str | Path, base: Path | None = None) -> ModelSpec:
    """Return the model spec of a bundled name or a ``config.json`` (relative to `base` when given).

    Raises
    ------
    InstanceError
        Naming the nearest bundled models, or the problems of the config.
    """
    path = resolve_path("llm", name_or_path, base)
    name = path.parent.name if path.name == "config.json" else path.stem
    return ModelSpec.from_config(path, name)


def read_instance(name_or_path: str | Path) -> Instance:
    """Read an instance by bundled name or from a YAML or JSON file.

    Raises
    ------
    InstanceError
        With every problem of every section.
    """
    path = resolve_path("instances", name_or_path)
    return instance_from_dict(read_document(path), str(path), path.parent)


def instance_from_dict(
    document: Mapping[str, Any], file: str | None = None, base: Path | None = None
) -> Instance:
    """Build an instance from a parsed document; paths are relative to `base`.

    Raises
    ------
    InstanceError
        With every problem of every section.
    """
    fields = Fields(file)
    document = fields.mapping(document, "", INSTANCE_KEYS)
    version = document.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        fields.problem("schema_version", version, "is not known", f"write {SCHEMA_VERSION}")
    for key in ("cluster", "model", "workload"):
        if key not in document:
            fields.problem(key, None, "is missing", f"give a `{key}:` section")

    cluster = _part(lambda: _cluster(document["cluster"], file, base), "cluster", document, fields)
    model = _part(lambda: _model(document["model"], file, base), "model", document, fields)
    workload = _part(
        lambda: Workload.from_dict(_section(document["workload"], "workload", file), file),
        "workload", document, fields,
    )  # fmt: skip
    cost = _part(
        lambda: CostConstants.from_dict(_section(document["cost"], "cost", file), file),
        "cost", document, fields,
    )  # fmt: skip
    if cluster is not None and workload is not None:
        fields.problems += [
            Problem(p.field, p.value, p.message, p.remedy, file)
            for p in check_dtype(cluster, workload.dtype)
        ]
    fields.finish()
    assert cluster is not None
    assert model is not None
    assert workload is not None
    return Instance(cluster, model, workload, cost or CostConstants())


def _part(
    read: Callable[[], _Part], key: str, document: Mapping[str, Any], fields: Fields
) -> _Part | None:
    """One section, or None after its problems were noted."""
    if key not in document:
        return None
    try:
        return read()
    except InstanceError as error:
        fields.problems += error.problems
        return None


def _cluster(value: object, file: str | None, base: Path | None) -> Cluster:
    if isinstance(value, Mapping):
        return Cluster.from_dict(value, file)
    return resolve_cluster(_name(value, "cluster", file), base)


def _model(value: object, file: str | None, base: Path | None) -> ModelSpec:
    if not isinstance(value, Mapping):
        return resolve_model(_name(value, "model", file), base)
    if isinstance(value.get("config"), Mapping):
        return ModelSpec.from_config(value["config"], str(value.get("name", "")))
    return ModelSpec.from_config(value, str(value.get("name", "")))


def _name(value: object, field: str, file: str | None) -> str:
    if isinstance(value, str) and value:
        return value
    raise InstanceError.single(
        field, value, "must be a name, a path or a mapping", f"write `{field}: NAME`", file
    )


def _section(value: object, field: str, file: str | None) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return {str(key): entry for key, entry in value.items()}
    raise InstanceError.single(field, value, "must be a mapping", "write `key: value` lines", file)

"""Plan files: a plan with its whole instance, readable by a person, written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hexisolve
from hexisolve.data.instance import Instance
from hexisolve.data.reading import Fields, read_document
from hexisolve.errors import InstanceError, PlanError, Problem
from hexisolve.plan.check import check_plan
from hexisolve.plan.document import check_schema, plan_from_dict, plan_to_dict, read_plan_document
from hexisolve.plan.evaluate import evaluate
from hexisolve.plan.plan import SCHEMA_VERSION, Plan

__all__ = ["PlanFile", "plan_from_dict", "plan_to_dict", "read_plan", "write_plan"]

logger = logging.getLogger(__name__)

_KEYS = ("schema_version", "package_version", "digest", "price_s", "instance", "plan")
_PRICE_TOLERANCE = 1e-9
_LINE_WIDTH = 100


@dataclass(frozen=True)
class PlanFile:
    """What a plan file holds.

    Parameters
    ----------
    instance, plan
        The problem, whole, and its answer.
    price_s
        Step time the plan was given when it was written.
    digest
        Digest of the instance when it was written.
    package_version
        The hexisolve that wrote it.
    warnings
        What does not agree any more, in words.
    """

    instance: Instance
    plan: Plan
    price_s: float
    digest: str
    package_version: str
    warnings: tuple[str, ...] = ()


def write_plan(path: str | Path, instance: Instance, plan: Plan) -> None:
    """Check a plan, price it, and write it with its instance; no half-written file is left.

    Raises
    ------
    PlanError
        When the plan breaks a rule; nothing is written.
    InstanceError
        When the file cannot be written.
    """
    violations = check_plan(instance, plan)
    if violations:
        raise PlanError(violations)
    document = {
        "schema_version": SCHEMA_VERSION,
        "package_version": hexisolve.__version__,
        "digest": instance.digest,
        "price_s": evaluate(instance, plan).step_time_s,
        "instance": instance.to_dict(),
        "plan": plan_to_dict(plan),
    }
    _write_whole(Path(path), "".join(_pretty(document)) + "\n")


def _write_whole(path: Path, text: str) -> None:
    """Write beside the target and move there in one step."""
    temporary = ""
    if path.exists() and not path.is_file():
        # Moving a file there would replace a device or a folder.
        raise InstanceError.single("file", None, "is no regular file", "name a file", str(path))
    try:
        handle, temporary = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
        reason = error.strerror or str(error)
        remedy = "name a file in a folder you may write to"
        raise InstanceError.single("file", reason, "cannot be written", remedy, str(path)) from None


def _pretty(value: Any, indent: str = "", used: int = 0) -> Iterator[str]:
    """JSON text in which whatever fits on a line stands on one."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + used + len(flat) <= _LINE_WIDTH or not isinstance(value, dict | list):
        yield flat
        return
    deeper = indent + "  "
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    entries = value.items() if isinstance(value, dict) else ((None, entry) for entry in value)
    separator = "\n"
    yield opening
    for key, entry in entries:
        name = "" if key is None else f"{json.dumps(str(key), ensure_ascii=False)}: "
        yield f"{separator}{deeper}{name}"
        yield from _pretty(entry, deeper, len(name))
        separator = ",\n"
    yield f"\n{indent}{closing}"


def read_plan(path: str | Path, *, reprice: bool = True) -> PlanFile:
    """Read a plan file and warn of what does not agree with it any more.

    Parameters
    ----------
    path
        A file that `write_plan` wrote (JSON).
    reprice
        Whether to price the plan again and compare; the runtime does not.

    Raises
    ------
    InstanceError
        With every problem of the file.
    """
    file = str(path)
    document = read_document(path)
    fields = Fields(file)
    version = document.get("schema_version")
    check_schema(version, "schema_version", fields)
    if fields.problems and isinstance(version, int) and version > SCHEMA_VERSION:
        fields.finish()  # the rest of a newer file cannot be judged
    document = fields.mapping(document, "", _KEYS)
    package = fields.text(document.get("package_version"), "package_version")
    digest = fields.text(document.get("digest"), "digest")
    price_s = fields.number(document.get("price_s"), "price_s", low=0.0, high=float("inf"))
    plan = read_plan_document(document.get("plan"), "plan", fields)
    instance = _instance(document.get("instance"), fields)
    fields.finish()
    assert instance is not None
    warnings = list(_disagreements(instance, plan, digest, price_s, package, reprice))
    for warning in warnings:
        logger.warning("%s: %s", file, warning)
    return PlanFile(instance, plan, price_s, digest, package, tuple(warnings))


def _instance(value: object, fields: Fields) -> Instance | None:
    document = fields.mapping(value, "instance", ("cluster", "model", "workload", "cost"))
    missing = [key for key in ("cluster", "model", "workload") if key not in document]
    for key in missing:
        fields.problem(f"instance.{key}", None, "is missing", "the file may be truncated")
    model = document.get("model")
    if model is not None and "config" not in fields.mapping(model, "instance.model"):
        missing.append("model")
        fields.problem("instance.model.config", None, "is missing")
    if missing:
        return None
    try:
        return Instance.from_dict(document, fields.file)
    except InstanceError as error:
        fields.problems += [
            Problem(p.field, p.value, p.message, p.remedy, fields.file) for p in error.problems
        ]
        return None


def _disagreements(
    instance: Instance, plan: Plan, digest: str, price_s: float, package: str, reprice: bool
) -> Iterator[str]:
    """What changed since the file was written."""
    if instance.digest != digest:
        yield "the instance was changed after the plan was made (its digest differs)"
    if not reprice or check_plan(instance, plan):
        return
    now_s = evaluate(instance, plan).step_time_s
    if abs(now_s - price_s) > _PRICE_TOLERANCE * max(now_s, price_s):
        yield (
            f"priced at {price_s:.6g} s by hexisolve {package}, "
            f"now {now_s:.6g} s by {hexisolve.__version__}"
        )

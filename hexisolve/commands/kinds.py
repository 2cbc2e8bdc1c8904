"""Which of cluster, model, instance and plan a name or a file is; and when it is the wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hexisolve.errors import InstanceError, Problem

if TYPE_CHECKING:
    from hexisolve.data.instance import Instance
    from hexisolve.plan.io import PlanFile

Kind = Literal["cluster", "model", "instance", "plan"]
KINDS: tuple[Kind, ...] = ("cluster", "model", "instance", "plan")
KIND2FOLDER: Mapping[Kind, Literal["clusters", "llm", "instances"]] = {
    "cluster": "clusters",
    "model": "llm",
    "instance": "instances",
}
_KIND2KEYS: Mapping[Kind, frozenset[str]] = {
    "plan": frozenset({"layout", "plan", "batch"}),
    "instance": frozenset({"workload"}),
    "cluster": frozenset({"hosts", "fabrics", "nodes", "links", "edges", "device_types"}),
    "model": frozenset({"model_type", "architectures", "hidden_size", "text_config", "n_embd"}),
}
_WANTED = {
    "plan": "PLAN is a plan file, as written by `solve --output`",
    "instance": "INSTANCE is an instance file or a bundled name, like demo",
}


def kind_of(what: str) -> Kind:
    """Which kind a bundled name or a file is.

    Raises
    ------
    InstanceError
        When it is none of them.
    """
    from hexisolve.data.library import bundled_names, resolve_path
    from hexisolve.data.reading import nearest, read_document

    kind = None if Path(what).exists() else bundled_kind(what)
    if kind is not None:
        return kind
    is_name = "/" not in what and not what.endswith((".yaml", ".yml", ".json"))
    if is_name and not Path(what).exists():
        names = [name for folder in KIND2FOLDER.values() for name in bundled_names(folder)]
        raise InstanceError.single(
            "name", what, "is neither a bundled name nor a file", nearest(what, names)
        )
    document = read_document(resolve_path("instances", what))
    found = kind_of_document(document)
    if found is None:
        raise InstanceError.single(
            "file", ", ".join(sorted(map(str, document))[:8]),
            "looks like no cluster, model, instance or plan", "say which with --as", what,
        )  # fmt: skip
    return found


def bundled_kind(name: str) -> Kind | None:
    """Which kind of bundled thing has this name, if any."""
    from hexisolve.data.library import bundled_path

    for kind, folder in KIND2FOLDER.items():
        if bundled_path(folder, name) is not None:
            return kind
    return None


def kind_of_document(document: Mapping[str, Any]) -> Kind | None:
    """Which kind a parsed file is, by its keys."""
    for kind, keys in _KIND2KEYS.items():
        if keys & document.keys():
            return kind
    return None


def read_instance_named(name: str) -> Instance:
    """The instance of a file or a bundled name.

    Raises
    ------
    InstanceError
        For one that cannot be read; a cluster, model or plan in its place is named.
    """
    from hexisolve.data.instance_file import read_instance

    try:
        return read_instance(name)
    except InstanceError as error:
        raise _instead(error, name, "instance") from None


def read_plan_named(name: str) -> PlanFile:
    """What a plan file holds.

    Raises
    ------
    InstanceError
        For one that cannot be read; a cluster, model or instance in its place is named.
    """
    from hexisolve.plan.io import read_plan

    try:
        return read_plan(name)
    except InstanceError as error:
        raise _instead(error, name, "plan") from None


def _instead(error: InstanceError, what: str, wanted: Literal["plan", "instance"]) -> InstanceError:
    """The error to tell when `what` could not be read as `wanted`: that it is of another kind.

    Parameters
    ----------
    error
        Why it could not be read; returned when `what` is of no other kind.
    what
        Name or file that was given.
    wanted
        Kind that was wanted.
    """
    kind = _other_kind(what, wanted)
    if kind is None:
        return error
    is_bundled = not Path(what).exists()
    name = f"a bundled {kind}" if is_bundled else f"an {kind}" if kind[0] in "aei" else f"a {kind}"
    remedy = _WANTED[wanted]
    if wanted == "instance":
        remedy += {
            "plan": "; a plan carries its instance: `check PLAN` and `simulate PLAN` need no other",
            "cluster": f"; for a cluster write --cluster {what}",
            "model": f"; for a model write --model {what}",
        }[kind]
    return InstanceError([Problem("file", "", f"is {name}, no {wanted}", remedy, what)])


def _other_kind(what: str, wanted: str) -> Kind | None:
    """The kind of what was given, when that is clear and not the one wanted."""
    from hexisolve.data.reading import read_document

    if not Path(what).exists():
        kind = bundled_kind(what)
    else:
        try:
            kind = kind_of_document(read_document(what))
        except InstanceError:
            return None
    return None if kind == wanted else kind

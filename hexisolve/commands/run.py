"""``hexisolve run``: train with a plan on local processes, or under torchrun."""

from __future__ import annotations

import argparse
from pathlib import Path

from hexisolve.commands.arguments import positive_seconds, whole_number
from hexisolve.commands.plans import legal_plan_from
from hexisolve.commands.shell import Shell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("plan", metavar="PLAN", help="plan file, as written by `solve --output`")
    parser.add_argument(
        "--data", metavar="FOLDER", type=Path,
        help="folder of text, tokenised by bytes; without it, Python's own standard library",
    )  # fmt: skip
    parser.add_argument("--steps", metavar="N", type=whole_number, default=10, help="default 10")
    parser.add_argument("--verify", action="store_true", help="compare with one process first")
    parser.set_defaults(instance=None)


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Train; print one line per step and a summary."""
    return 0

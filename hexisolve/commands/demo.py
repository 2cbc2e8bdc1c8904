"""``hexisolve demo``: solve, compare, run and verify a bundled mixed cluster."""

from __future__ import annotations

import argparse

from hexisolve.commands.shell import Shell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Run the demo."""
    return 0

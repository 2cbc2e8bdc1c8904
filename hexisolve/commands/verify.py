"""``hexisolve verify``: prove a plan's gradients against one device, in one process."""

from __future__ import annotations

import argparse
from collections.abc import Collection

from hexisolve.commands.arguments import seed_number
from hexisolve.commands.plans import add_plan_argument, legal_plan_from
from hexisolve.commands.progress import progress
from hexisolve.commands.shell import Shell
from hexisolve.commands.training import MAX_GRADIENT_DIFFERENCE, one_thread_per_process

REDUCTIONS = ("tokens", "widths", "layers", "chunks", "blocks")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_plan_argument(parser)
    parser.add_argument(
        "--seed", metavar="N", type=seed_number, default=0, help="default %(default)s"
    )
    parser.add_argument(
        "--keep", metavar="WHAT", type=_reductions, default=(),
        help=f"do not reduce these before running: some of {','.join(REDUCTIONS)}",
    )  # fmt: skip
    parser.set_defaults(instance=None)


def _reductions(text: str) -> Collection[str]:
    """Names out of `REDUCTIONS`, between commas."""
    names = text.split(",")
    unknown = [name for name in names if name not in REDUCTIONS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(map(repr, unknown))} is none of {', '.join(REDUCTIONS)}"
        )
    return names


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Match the whole programs, run the miniature, compare with one process."""
    one_thread_per_process()
    from hexisolve.program.compile import compile_plan
    from hexisolve.program.match import match
    from hexisolve.program.miniature import miniature
    from hexisolve.runtime.verify import verify_virtual

    instance, plan = legal_plan_from(args)
    with progress(shell, "matching the whole programs") as report:
        matched = match(compile_plan(instance, plan))
        small = miniature(instance, plan, keep=args.keep)
        report("running the miniature")
        found = None
        if matched.ok:
            found = verify_virtual(
                small.instance, small.plan, seed=args.seed, ring_blocks=small.ring_blocks
            )
    is_exact = found is not None and found.ok(MAX_GRADIENT_DIFFERENCE)
    if shell.is_json:
        shell.write_json(
            {
                "exact": is_exact,
                "tolerance": MAX_GRADIENT_DIFFERENCE,
                "num_ranks": len(plan.layout.ranks),
                "problems": list(matched.problems),
                "num_transfers": matched.num_transfers,
                "num_collectives": matched.num_collectives,
                "reductions": list(small.reductions),
                "loss": found and found.loss,
                "reference_loss": found and found.reference_loss,
                "max_loss_difference": found and found.max_loss_difference,
                "max_gradient_difference": found and found.max_gradient_difference,
                "worst_parameter": found and found.worst_parameter,
            }
        )
        return 0 if is_exact else 1
    if found is None:
        shell.show("the programs do not meet:", *matched.problems)
        return 1
    shell.show(
        f"the whole programs of {len(plan.layout.ranks)} ranks meet: {matched.num_transfers:,}"
        f" transfers and {matched.num_collectives:,} collectives a step, none can wait for ever",
        "executed after reducing:",
        *(f"  {line}" for line in small.reductions or ("nothing",)),
        f"loss {found.loss:.12f}, of one process {found.reference_loss:.12f}",
        f"largest difference: loss {found.max_loss_difference:.1e}, gradient"
        f" {found.max_gradient_difference:.1e} ({found.worst_parameter})",
        "exact" if is_exact else f"NOT EXACT: above {MAX_GRADIENT_DIFFERENCE:g}",
    )
    return 0 if is_exact else 1

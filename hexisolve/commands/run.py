"""``hexisolve run``: train with a plan on local processes, or as one rank under torchrun."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from hexisolve.commands.arguments import file_path, positive_seconds, seed_number, whole_number
from hexisolve.commands.plans import add_plan_argument, legal_plan_from
from hexisolve.commands.progress import progress
from hexisolve.commands.shell import Shell
from hexisolve.commands.training import (
    MAX_LOSS_DIFFERENCE,
    StepPrinter,
    is_exact,
    one_thread_per_process,
)
from hexisolve.errors import InstanceError
from hexisolve.units import format_bytes

if TYPE_CHECKING:
    from hexisolve.data.instance import Instance
    from hexisolve.plan.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add_plan_argument(parser)
    parser.add_argument(
        "--data", metavar="FOLDER", type=file_path,
        help="folder of text, tokenised by bytes; without it, Python's own standard library",
    )  # fmt: skip
    parser.add_argument(
        "--steps", metavar="N", type=whole_number, default=10, help="default %(default)s"
    )
    parser.add_argument(
        "--verify", action="store_true",
        help="train one process beside, compare every loss, and the first gradients in float64",
    )  # fmt: skip
    parser.add_argument(
        "--dtype", choices=("float32", "float64", "bfloat16"), default="float32",
        help="default %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--learning-rate", metavar="R", type=_rate, default=3e-4, help="default %(default)s"
    )
    parser.add_argument(
        "--seed", metavar="N", type=seed_number, default=0, help="default %(default)s"
    )
    parser.add_argument(
        "--timeout", metavar="S", type=positive_seconds, default=120.0,
        help="seconds after which a silent rank is given up; default %(default)g",
    )  # fmt: skip
    parser.add_argument(
        "--processes", metavar="N", type=whole_number,
        help="processes to start; must be the ranks of the plan, which is the default",
    )  # fmt: skip
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu",
        help="under torchrun: cuda uses NCCL and is untested; default %(default)s",
    )  # fmt: skip
    parser.set_defaults(instance=None)


def _rate(text: str) -> float:
    """A learning rate above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} must lie above 0, like 3e-4")
    return number


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Train; print one line per step and a summary."""
    one_thread_per_process()
    instance, plan = legal_plan_from(args)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _run_rank(args, instance, plan, shell)
    return _run_local(args, instance, plan, shell)


def _run_local(args: argparse.Namespace, instance: Instance, plan: Plan, shell: Shell) -> int:
    """Start one process per rank on this machine."""
    from hexisolve.plan.evaluate import evaluate
    from hexisolve.runtime.launch import train

    if args.device != "cpu":
        raise InstanceError.single(
            "--device", args.device, "needs one process per device that torchrun started",
            "write `torchrun ... -m hexisolve run`",
        )  # fmt: skip
    _check_processes("--processes", args.processes, plan)
    price = evaluate(instance, plan)
    _check_memory(sum(device.memory.states for device in price.devices))
    printer = StepPrinter(shell, price.step_time_s, args.verify)
    with progress(shell, f"starting {len(plan.layout.ranks)} processes"):
        summary = train(
            instance, plan, verify=args.verify, on_step=printer, **_training_options(args)
        )
    printer.close(summary)
    tolerance = 1e-10 if args.dtype == "float64" else MAX_LOSS_DIFFERENCE
    return 0 if not args.verify or is_exact(summary, tolerance) else 1


def _run_rank(args: argparse.Namespace, instance: Instance, plan: Plan, shell: Shell) -> int:
    """Be the one rank that torchrun made this process; rank 0 prints."""
    from hexisolve.plan.evaluate import evaluate
    from hexisolve.runtime.entry import train_rank

    if args.verify:
        raise InstanceError.single(
            "--verify", None, "needs local processes", "leave torchrun out, or use `verify PLAN`"
        )
    _check_processes("WORLD_SIZE", int(os.environ["WORLD_SIZE"]), plan)
    printer = StepPrinter(shell, evaluate(instance, plan).step_time_s, verifies=False)
    summary = train_rank(
        instance, plan, device=args.device, on_step=printer, **_training_options(args)
    )
    if os.environ["RANK"] == "0":
        printer.close(summary)
    return 0


def _training_options(args: argparse.Namespace) -> dict[str, Any]:
    """What both ways to start take."""
    return {
        "data": args.data,
        "num_steps": args.steps,
        "dtype": args.dtype,
        "learning_rate": args.learning_rate,
        "seed": args.seed,
        "timeout_s": args.timeout,
    }


def _check_memory(states_bytes: int) -> None:
    """Refuse what would only drive this machine into its swap space."""
    available_bytes = machine_bytes()
    if available_bytes is not None and states_bytes > available_bytes:
        raise InstanceError.single(
            "plan", format_bytes(states_bytes),
            f"weights and states of all ranks need more than this machine has, "
            f"{format_bytes(available_bytes)}",
            "start it with torchrun on the hosts of the plan, or prove it here with `verify PLAN`",
        )  # fmt: skip


def machine_bytes() -> int | None:
    """Memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _check_processes(field: str, num_processes: int | None, plan: Plan) -> None:
    num_ranks = len(plan.layout.ranks)
    if num_processes is not None and num_processes != num_ranks:
        raise InstanceError.single(
            field, num_processes, f"the plan has {num_ranks} ranks",
            f"start {num_ranks} processes, or solve for a cluster of {num_processes} devices",
        )  # fmt: skip

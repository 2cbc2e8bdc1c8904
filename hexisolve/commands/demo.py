"""``hexisolve demo``: solve, compare, run and verify a bundled mixed cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hexisolve.commands.arguments import file_path, whole_number
from hexisolve.commands.search import (
    Answer,
    add_search_arguments,
    comparison_document,
    comparison_table,
    result_text,
    search,
)
from hexisolve.commands.shell import Shell, require_writable
from hexisolve.commands.training import (
    MAX_GRADIENT_DIFFERENCE,
    MAX_LOSS_DIFFERENCE,
    StepPrinter,
    is_exact,
    one_thread_per_process,
)

if TYPE_CHECKING:
    from hexisolve.data.instance import Instance
    from hexisolve.plan.plan import Plan
    from hexisolve.runtime.records import TrainingSummary

INSTANCE = "demo"
NUM_STEPS = 30
LEARNING_RATE = 1e-3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "--steps", metavar="N", type=whole_number, default=NUM_STEPS, help="default %(default)s"
    )
    parser.add_argument("-o", "--output", metavar="PLAN", type=file_path, help="keep the plan here")
    add_search_arguments(parser)


def run(args: argparse.Namespace, shell: Shell) -> int:
    """Run the demo; 1 if anything it claims does not come out."""
    from hexisolve.data.instance_file import read_instance
    from hexisolve.plan.evaluate import evaluate
    from hexisolve.plan.io import write_plan
    from hexisolve.report.plan import plan_parts

    one_thread_per_process()
    require_writable(args.output)
    instance = read_instance(INSTANCE)
    _say(shell, f"1. Solve: {instance.model.name} on {instance.cluster.name}")
    answer = search(instance, args, shell)
    plan = answer.result.plan
    if plan is None:
        shell.say(result_text(answer))
        return 1
    if args.output is not None:
        write_plan(args.output, instance, plan)
    if not shell.is_json:
        shell.show(result_text(answer), *plan_parts(instance, plan))
    _say(shell, "2. Compare with even splits and published heuristics")
    if not shell.is_json:
        shell.show(comparison_table(answer))
    num_transfers = _prove(instance, plan)
    _say(shell, f"3. Prove: {num_transfers} transfers of the compiled programs meet, none can "
         "wait for ever")  # fmt: skip
    _say(shell, f"4. Run: {len(plan.layout.ranks)} processes and, beside them, one")
    predicted_s = evaluate(instance, plan).step_time_s
    printer = StepPrinter(shell, predicted_s, verifies=True)
    summary = _train(instance, plan, args, printer)
    failures = _failures(answer, plan, summary)
    if shell.is_json:
        from hexisolve.runtime.records import summary_document

        shell.write_json(
            comparison_document(answer)
            | {"training": summary_document(summary, predicted_s), "failures": failures}
        )
    else:
        printer.close(summary)
    for failure in failures:
        shell.say(f"FAILED: {failure}")
    if not failures:
        _say(shell, "The plan trains the model exactly as one process does.")
    return 1 if failures else 0


def _say(shell: Shell, heading: str) -> None:
    """Print a heading: among the results for people, on stderr with `--json`."""
    if shell.is_json:
        shell.say(heading)
    else:
        shell.show(f"\n{heading}\n")


def _prove(instance: Instance, plan: Plan) -> int:
    """Transfers of the compiled programs, all of which meet.

    Raises
    ------
    RuntimeMismatchError
        When they do not.
    """
    from hexisolve.errors import RuntimeMismatchError
    from hexisolve.program.compile import compile_plan
    from hexisolve.program.match import match

    report = match(compile_plan(instance, plan))
    if not report.ok:
        raise RuntimeMismatchError("\n".join(report.problems))
    return report.num_transfers + report.num_collectives


def _train(
    instance: Instance, plan: Plan, args: argparse.Namespace, printer: StepPrinter
) -> TrainingSummary:
    from hexisolve.runtime.launch import train

    return train(
        instance,
        plan,
        num_steps=args.steps,
        dtype="float32",
        learning_rate=LEARNING_RATE,
        seed=args.seed,
        verify=True,
        on_step=None if printer.shell.is_json else printer,
    )


def _failures(answer: Answer, plan: Plan, summary: TrainingSummary) -> list[str]:
    """What the demo promises and did not show, in words."""
    stages = [stage for _, _, stage in plan.layout.stages()]
    num_used = len(plan.layout.ranks)
    num_devices = len(answer.instance.cluster.devices)
    promises: dict[str, bool] = {
        f"the plan uses {num_used} of {num_devices} devices": num_used == num_devices,
        f"the plan has {len(stages)} stages, not 2": len(stages) == 2,
        "every stage splits its tokens evenly": any(
            len({rank.tokens for rank in stage.ranks}) > 1 for stage in stages
        ),
        "every head group splits its heads evenly": any(
            len({rank.num_q_heads for rank in group.ranks}) > 1
            for stage in stages
            for group in stage.ring
        ),
        f"the loss did not fall ({summary.first_loss:.4f} to {summary.last_loss:.4f})": (
            summary.last_loss < summary.first_loss
        ),
        f"a loss or gradient is further from one process than {MAX_LOSS_DIFFERENCE:g} relative or "
        f"{MAX_GRADIENT_DIFFERENCE:g} absolute": is_exact(summary),
    }
    return [failure for failure, is_kept in promises.items() if not is_kept]

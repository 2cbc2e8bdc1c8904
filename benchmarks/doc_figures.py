"""The figures that the pages of docs/ quote, measured again.

Run it from the repository root, with the names of the figures wanted::

    PYTHONPATH=. python benchmarks/doc_figures.py flows baselines programs miniature exactness

Seconds are of processor time of this process, so that a busy machine does not count; `exactness`
also starts processes.
"""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from hexisolve.cost.communication import flow_network
from hexisolve.data.instance import Instance
from hexisolve.data.instance_file import resolve_cluster, resolve_model
from hexisolve.data.workload import Workload
from hexisolve.plan.plan import Plan
from hexisolve.program.compile import compile_plan
from hexisolve.program.match import match
from hexisolve.program.miniature import miniature
from hexisolve.program.rank_program import expand
from hexisolve.solvers.baselines import baselines
from tests.plans import CASES, large

_Result = TypeVar("_Result")


def flows() -> Iterator[str]:
    """An exchange of 256 flows between random devices (docs/clusters.md)."""
    cluster = resolve_cluster("mixed-128")
    network = flow_network(cluster)
    draw = np.random.default_rng(0)
    sources, targets = draw.integers(0, len(cluster.devices), (2, 256))
    num_bytes = draw.integers(1, 10**9, 256).astype(float)
    repeats = 1000
    network.time_s(sources, targets, num_bytes, 0.85)
    _, seconds = _timed(
        lambda: [network.time_s(sources, targets, num_bytes, 0.85) for _ in range(repeats)]
    )
    yield f"256 flows on mixed-128: {1e3 * seconds / repeats:.3f} ms"


def all_baselines() -> Iterator[str]:
    """Every baseline of a setting (docs/baselines.md)."""
    for cluster, model, context_tokens in (
        ("mixed-32", "llama-2-13b", 65_536),
        ("mixed-32", "llama-3.1-70b", 262_144),
        ("mixed-128", "llama-3.1-70b", 262_144),
    ):
        workload = Workload(context_tokens=context_tokens, batch_sequences=8)
        instance = Instance(resolve_cluster(cluster), resolve_model(model), workload)
        found, seconds = _timed(baselines, instance)
        fits = [entry.step_time_s is not None for entry in found.values()]
        yield (
            f"{cluster}, {model}, {context_tokens // 1024}K: {seconds:.1f} s,"
            f" {sum(fits)} of {len(fits)} fit"
        )


def programs() -> Iterator[str]:
    """Compiling and matching the programs of 128 ranks (docs/programs.md)."""
    for name, num_groups in (("4 groups of 8", 4), ("32 single ranks", 32)):
        case = large(num_groups=num_groups)
        whole, compile_s = _timed(compile_plan, *case)
        report, match_s = _timed(match, whole)
        _, digest_s = _timed(getattr, whole, "digest")
        assert report.ok
        num_flat = sum(1 for rank in whole.ranks for _ in expand(rank))
        yield (
            f"{name}: {num_flat / 1e6:.1f} million instructions, {report.num_transfers / 1e6:.1f}"
            f" million transfers; compile {compile_s:.1f} s, match {match_s:.1f} s, digest"
            f" {digest_s:.1f} s"
        )


def miniatures() -> Iterator[str]:
    """Miniatures in the virtual executor, reference included (docs/programs.md)."""
    from hexisolve.runtime.verify import verify_virtual

    for num_ranks, num_stages, keep in ((32, 2, ()), (32, 2, ("blocks",)), (128, 4, ())):
        small = miniature(*large(num_ranks, num_stages), keep=keep)
        found, seconds = _timed(
            verify_virtual, small.instance, small.plan, ring_blocks=small.ring_blocks
        )
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        yield (
            f"{num_ranks} ranks, {num_stages} stages, {small.ring_blocks} blocks: {seconds:.0f} s,"
            f" {peak_bytes / 1e9:.1f} GB, gradients within {found.max_gradient_difference:.0e}"
        )


def exactness() -> Iterator[str]:
    """The largest differences over all hand-written plans (docs/runtime.md)."""
    from hexisolve.errors import UnsupportedPlanError
    from hexisolve.runtime.verify import verify_processes, verify_virtual

    executors: dict[str, Callable[[Instance, Plan], object]] = {
        "virtual": verify_virtual,
        "gloo": verify_processes,
    }
    for name, verify in executors.items():
        losses, gradients = [0.0], [0.0]
        num_refused = 0
        for case in CASES.values():
            try:
                found = verify(*case())
            except UnsupportedPlanError:
                num_refused += 1
                continue
            losses.append(found.max_loss_difference)
            gradients.append(found.max_gradient_difference)
        yield (
            f"{name}: {len(losses) - 1} plans, {num_refused} refused; loss {max(losses):.1e},"
            f" gradient {max(gradients):.1e}"
        )


FIGURES: dict[str, Callable[[], Iterator[str]]] = {
    "flows": flows,
    "baselines": all_baselines,
    "programs": programs,
    "miniature": miniatures,
    "exactness": exactness,
}


def _timed(
    work: Callable[..., _Result], *arguments: object, **options: object
) -> tuple[_Result, float]:
    """What a call returns, and its seconds."""
    begun_s = time.process_time()
    result = work(*arguments, **options)
    return result, time.process_time() - begun_s


def main(names: list[str]) -> int:
    """Print the figures of these names, or of all."""
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        sys.stderr.write(f"{unknown[0]!r} is none of {', '.join(FIGURES)}\n")
        return 2
    logging.disable(logging.WARNING)
    for name in names or FIGURES:
        for line in FIGURES[name]():
            sys.stdout.write(f"{name}: {line}\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

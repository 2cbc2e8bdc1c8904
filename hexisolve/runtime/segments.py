"""Local segments with autograd confined to them: run on detached leaves, backward on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from hexisolve.runtime.flat import FlatStage

Segment = Callable[..., Tensor | tuple[Tensor, ...]]


@dataclass(frozen=True, eq=False)
class Record:
    """The autograd record of one run of a segment: enough for its backward and no more.

    Outputs are kept as edges of the graph, not as tensors, so that what the next instruction
    does not need is freed although the record lives.
    """

    inputs: tuple[Tensor, ...]
    parameters: tuple[nn.Parameter, ...]
    edges: tuple[GradientEdge, ...]


def run_segment(
    segment: Segment,
    inputs: Sequence[Tensor],
    constants: Sequence[Tensor],
    parameters: Sequence[nn.Parameter],
    *,
    record: bool,
) -> tuple[tuple[Tensor, ...], Record | None]:
    """Run ``segment(*inputs, *constants)``; its detached outputs and, if asked, the record."""
    if not record:
        with torch.no_grad():
            outputs = segment(*inputs, *constants)
        return (outputs,) if isinstance(outputs, Tensor) else outputs, None
    leaves = tuple(tensor.detach().requires_grad_() for tensor in inputs)
    with torch.enable_grad():
        outputs = segment(*leaves, *constants)
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    edges = tuple(get_gradient_edge(output) for output in outputs)
    kept = Record(leaves, tuple(parameters), edges)
    return tuple(output.detach() for output in outputs), kept


def warm_up() -> None:
    """Run one backward, so that processes forked afterwards need not import what it imports.

    `torch.autograd.grad` loads symbolic shapes (and sympy) on first use: seconds per process.
    """
    leaf = torch.zeros(1, requires_grad=True)
    torch.autograd.grad(leaf * leaf, leaf, torch.ones(1))


def run_backward(
    record: Record, output_gradients: Sequence[Tensor], flat: FlatStage
) -> tuple[Tensor, ...]:
    """Gradients of the inputs; those of the parameters are added to the flat buffer."""
    wanted = (*record.inputs, *record.parameters)
    gradients = torch.autograd.grad(record.edges, wanted, output_gradients)
    num_inputs = len(record.inputs)
    flat.accumulate(record.parameters, gradients[num_inputs:])
    return gradients[:num_inputs]

"""Weights and gradients of one stage in flat buffers, one range per unit of weights.

Every rank that holds a unit lays its parameters out in the same order, so "its share" is a
half-open range and every collective moves plain ranges, uneven or empty ones included.
Gradients are accumulated in float32 or wider whatever the weights are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hexisolve.errors import RuntimeMismatchError
from hexisolve.program.rank_program import Unit
from hexisolve.runtime.architecture import EMBEDDING, FINAL_NORM, HEAD, Architecture
from hexisolve.runtime.attention import wide_dtype


@dataclass(frozen=True)
class Span:
    """Place of one parameter in a unit's flat vector."""

    name: str
    start: int
    stop: int
    shape: tuple[int, ...]


def unit_spans(architecture: Architecture, unit: str) -> tuple[Span, ...]:
    """Parameters of a unit of weights, one after another."""
    table = (architecture.vocab_size, architecture.hidden_size)
    shapes: dict[str, tuple[int, ...]]
    if unit == "embedding":
        shapes = {EMBEDDING: table}
    elif unit == "final_norm":
        shapes = {FINAL_NORM: (architecture.hidden_size,)}
    elif unit == "head":
        shapes = {HEAD: table}
    else:
        shapes = architecture.layer_shapes(int(unit.removeprefix("layer:")))
    spans, start = [], 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        spans.append(Span(name, start, stop, shape))
        start = stop
    return tuple(spans)


class FlatStage:
    """The flat buffers of one stage; the parameters of its module become views of `weights`.

    Raises
    ------
    RuntimeMismatchError
        When the program counts other parameters for a unit than the modules have.
    """

    def __init__(
        self, architecture: Architecture, module: nn.Module, units: Sequence[Unit]
    ) -> None:
        self.spans = {unit.name: unit_spans(architecture, unit.name) for unit in units}
        for unit in units:
            found = self.spans[unit.name][-1].stop
            if found != unit.size:
                raise RuntimeMismatchError(
                    f"unit {unit.name}: the program has {unit.size} parameters, the module {found}"
                )
        named = dict(module.named_parameters())
        example = next(iter(named.values()))
        self.weights: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        self._gradient_of: dict[int, Tensor] = {}
        for unit in units:
            weight = torch.empty(unit.size, dtype=example.dtype, device=example.device)
            gradient = torch.zeros(
                unit.size, dtype=wide_dtype(example.dtype), device=example.device
            )
            self.weights[unit.name], self.gradients[unit.name] = weight, gradient
            for span in self.spans[unit.name]:
                parameter = named[span.name]
                view = weight[span.start : span.stop].view(span.shape)
                view.copy_(parameter.detach())
                # Only the storage is exchanged: autograd keeps no version of it, so ZeRO-3 may
                # drop and gather weights between forward and backward.
                parameter.data = view
                self._gradient_of[id(parameter)] = gradient[span.start : span.stop]

    def accumulate(
        self, parameters: Iterable[nn.Parameter], gradients: Iterable[Tensor | None]
    ) -> None:
        """Add gradients to the places of their parameters."""
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                self._gradient_of[id(parameter)].add_(gradient.reshape(-1))

    def named(self, flat: dict[str, Tensor]) -> dict[str, Tensor]:
        """Global name -> view, for `weights` or `gradients`."""
        return {
            span.name: flat[unit][span.start : span.stop].view(span.shape)
            for unit, spans in self.spans.items()
            for span in spans
        }

    def clear_gradients(self) -> None:
        """Set all gradients to zero."""
        for gradient in self.gradients.values():
            gradient.zero_()

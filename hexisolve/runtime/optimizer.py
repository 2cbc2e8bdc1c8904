"""AdamW on a range of a flat buffer: what a rank updates under any ZeRO mode."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hexisolve.runtime.attention import wide_dtype


@dataclass(frozen=True, kw_only=True)
class AdamWSettings:
    """Settings of the optimizer.

    Parameters
    ----------
    weight_decay
        Decoupled decay, applied to every parameter.
    max_gradient_norm
        Gradients are scaled down to this global norm; None leaves them.
    """

    learning_rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_gradient_norm: float | None = None


class ShareOptimizer:
    """AdamW over ``weights[start:stop]`` with a master copy in float32 or wider.

    ``m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2;
    w -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay w)``

    Source: Loshchilov and Hutter, arXiv 1711.05101, algorithm 2 (the form of `torch.optim.AdamW`).
    """

    def __init__(self, weights: Tensor, start: int, stop: int, settings: AdamWSettings) -> None:
        self.settings = settings
        self.start, self.stop = start, stop
        wide = wide_dtype(weights.dtype)
        share = weights[start:stop]
        # Weights that are wide already are their own master copy.
        self.master = share if share.dtype == wide else share.to(wide)
        self.first_moment = torch.zeros(stop - start, dtype=wide, device=weights.device)
        self.second_moment = torch.zeros(stop - start, dtype=wide, device=weights.device)
        self.num_steps = 0

    @torch.no_grad()
    def step(self, weights: Tensor, gradients: Tensor, scale: float = 1.0) -> None:
        """One update from ``gradients * scale`` of the own range; writes the range of `weights`."""
        settings = self.settings
        beta1, beta2 = settings.betas
        self.num_steps += 1
        gradient = gradients * scale if scale != 1.0 else gradients
        self.first_moment.mul_(beta1).add_(gradient, alpha=1 - beta1)
        self.second_moment.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        corrected = self.second_moment / (1 - beta2**self.num_steps)
        update = self.first_moment / (1 - beta1**self.num_steps)
        update /= corrected.sqrt_().add_(settings.eps)
        if settings.weight_decay:
            update.add_(self.master, alpha=settings.weight_decay)
        self.master.add_(update, alpha=-settings.learning_rate)
        own = weights[self.start : self.stop]
        if own.data_ptr() != self.master.data_ptr():
            own.copy_(self.master)


def clip_scale(squared_norm: float, max_norm: float | None) -> float:
    """Factor that brings a gradient of this squared norm down to `max_norm`."""
    if max_norm is None:
        return 1.0
    return min(1.0, max_norm / (math.sqrt(squared_norm) + 1e-6))

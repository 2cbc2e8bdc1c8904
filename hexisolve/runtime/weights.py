"""Initial weights: a pure function of seed and global name, so every rank draws the same."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from hexisolve.runtime.architecture import EMBEDDING, Architecture

Style = Literal["training", "probe"]


def initial_weight(
    architecture: Architecture, name: str, shape: tuple[int, ...], seed: int, style: Style
) -> Tensor:
    """One parameter in float64.

    ``training``: normal(0, initializer range), norms 1, biases 0. ``probe``: everything random
    and of size about 1 after a product, so that a lost term shows in the gradients.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    noise = torch.randn(shape, dtype=torch.float64, generator=generator)
    is_norm = name.endswith("norm.weight")
    if style == "probe":
        if is_norm:
            return 1.0 + 0.2 * noise
        if name.endswith(".bias"):
            return 0.2 * noise
        return noise if name == EMBEDDING else noise / math.sqrt(shape[-1])
    if is_norm:
        return torch.ones(shape, dtype=torch.float64)
    if name.endswith(".bias"):
        return torch.zeros(shape, dtype=torch.float64)
    return noise * architecture.initializer_range


def initial_weights(
    architecture: Architecture,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int = 0,
    style: Style = "training",
) -> dict[str, Tensor]:
    """Global name -> float64 tensor for each of `shapes`."""
    return {
        name: initial_weight(architecture, name, shape, seed, style)
        for name, shape in shapes.items()
    }

"""Rotary position embeddings at explicit positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hexisolve.runtime.architecture import RopeScaling


def inverse_frequencies(rope: RopeScaling, head_dim: int) -> Tensor:
    """Angular frequency of every pair of dimensions, float64, shape (head_dim / 2,).

    ``theta ** (-2 i / head_dim)``; ``linear`` divides all by the factor, ``llama3`` only the slow
    ones, with a smooth passage between the two wavelengths.

    Source: Llama 3.1 model card and `transformers.modeling_rope_utils`.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = rope.theta**-exponents
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        wavelengths = 2 * math.pi / frequencies
        smooth = (rope.original_tokens / wavelengths - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        smooth = smooth.clamp(0.0, 1.0)
        return (1 - smooth) * frequencies / rope.factor + smooth * frequencies
    return frequencies


def rotation_tables(
    rope: RopeScaling, head_dim: int, positions_L: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(cos, sin), each of shape (L, 1, head_dim), at the given positions."""
    frequencies = inverse_frequencies(rope, head_dim).to(positions_L.device)
    angles = positions_L.to(torch.float64)[:, None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)[:, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x_LNH: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn every pair (i, i + H/2) of a head by its angle (Hugging Face order of dimensions)."""
    front, back = x_LNH.chunk(2, dim=-1)
    return x_LNH * cos + torch.cat((-back, front), dim=-1) * sin

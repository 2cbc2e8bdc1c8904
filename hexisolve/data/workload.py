"""What is trained in one optimizer step: sequences, precision, what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hexisolve.errors import InstanceError, Problem

Dtype = Literal["bf16", "fp16", "fp32", "fp64"]
ELEMENT_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
ZERO_MODES = (0, 1, 3)
MAX_COUNT = 10**9  # tokens of a sequence, sequences of a step


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The sequences of one global batch and how they are trained.

    Give either `context_tokens` with `batch_sequences`, or `lengths`.

    Parameters
    ----------
    context_tokens
        Length of every sequence, in tokens.
    batch_sequences
        Number of such sequences in a step.
    lengths
        Length of each sequence in a step, in tokens; replaces the two above.
    dtype
        Precision of weights and activations.
    zero
        ZeRO modes a plan may use (0, 1, 3).
    attention
        ``causal`` or ``full``.
    block_tokens
        Token shares are multiples of this where the length allows (kernel tiles); 1 is allowed.

    Raises
    ------
    InstanceError
        With every problem found.
    """

    context_tokens: int | None = None
    batch_sequences: int | None = None
    lengths: tuple[int, ...] | None = None
    dtype: Dtype = "bf16"
    zero: tuple[int, ...] = ZERO_MODES
    attention: Literal["causal", "full"] = "causal"
    block_tokens: int = 128

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise InstanceError(problems)

    @property
    def sequence_lengths(self) -> tuple[int, ...]:
        """Length of every sequence of the global batch, in tokens."""
        if self.lengths is not None:
            return self.lengths
        assert self.context_tokens is not None
        assert self.batch_sequences is not None
        return (self.context_tokens,) * self.batch_sequences

    @property
    def num_tokens(self) -> int:
        """Tokens of one optimizer step."""
        return sum(self.sequence_lengths)

    @property
    def element_bytes(self) -> int:
        """e: bytes of a weight or an activation element."""
        return ELEMENT_BYTES[self.dtype]

    def to_dict(self) -> dict[str, Any]:
        """JSON form, defaults included."""
        sizes: dict[str, Any] = (
            {"lengths": list(self.lengths)}
            if self.lengths is not None
            else {"context_tokens": self.context_tokens, "batch_sequences": self.batch_sequences}
        )
        return sizes | {
            "dtype": self.dtype,
            "zero": list(self.zero),
            "attention": self.attention,
            "block_tokens": self.block_tokens,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], file: str | None = None) -> Workload:
        """Inverse of `to_dict`; raises InstanceError naming unknown keys and bad values."""
        known = set(cls.__dataclass_fields__)
        problems = [
            Problem(f"workload.{key}", str(document[key]), "unknown key",
                    f"use one of {', '.join(sorted(known))}", file)
            for key in document
            if key not in known
        ]  # fmt: skip
        values = {key: value for key, value in document.items() if key in known}
        for key in ("lengths", "zero"):
            value = values.get(key)
            if isinstance(value, list):
                values[key] = tuple(value)
            elif value is not None and not isinstance(value, tuple):
                problems.append(
                    Problem(f"workload.{key}", str(value), "must be a list of whole numbers",
                            file=file)
                )  # fmt: skip
                del values[key]
        try:
            workload = cls(**values)
        except InstanceError as error:
            problems += [
                Problem(p.field, p.value, p.message, p.remedy, file) for p in error.problems
            ]
        if problems:
            raise InstanceError(problems)
        return workload


def _problems(workload: Workload) -> list[Problem]:
    """Everything wrong with a workload's values."""
    found: list[Problem] = []

    def report(name: str, value: object, message: str, remedy: str = "") -> None:
        found.append(Problem(f"workload.{name}", str(value), message, remedy))

    def positive(name: str, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            report(name, value, "must be a whole number of at least 1")
        elif value > MAX_COUNT:
            report(name, value, f"must be at most {MAX_COUNT:,}")

    if workload.lengths is None:
        for name in ("context_tokens", "batch_sequences"):
            value = getattr(workload, name)
            if value is None:
                report(name, value, "is missing", "give it, or give `lengths`")
            else:
                positive(name, value)
    else:
        if workload.context_tokens is not None or workload.batch_sequences is not None:
            report("lengths", "", "cannot be combined with context_tokens or batch_sequences",
                   "give one or the other")  # fmt: skip
        if not workload.lengths:
            report("lengths", [], "is empty", "give at least one sequence length")
        for index, length in enumerate(workload.lengths):
            positive(f"lengths[{index}]", length)
    if not isinstance(workload.dtype, str) or workload.dtype not in ELEMENT_BYTES:
        report("dtype", workload.dtype, "unknown", f"use one of {', '.join(ELEMENT_BYTES)}")
    if not workload.zero or any(mode not in ZERO_MODES for mode in workload.zero):
        report("zero", workload.zero, "must list ZeRO modes out of 0, 1, 3")
    if workload.attention not in ("causal", "full"):
        report("attention", workload.attention, "unknown", "use causal or full")
    positive("block_tokens", workload.block_tokens)
    return found

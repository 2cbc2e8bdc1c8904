"""Token sequences to train on, in a fixed order: step k of a seed is the same everywhere.

A corpus is a folder of text, tokenised by bytes (256 symbols), or, without one, the source of the
Python standard library, present on every machine.
"""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hexisolve.errors import InstanceError

IGNORED = -100
BYTE_VOCABULARY = 256


@dataclass(frozen=True)
class Batch:
    """The sequences of one step.

    Parameters
    ----------
    tokens
        Per sequence, token ids, shape (S,).
    targets
        Per sequence, what every token should predict, shape (S,); `IGNORED` where nothing.
    """

    tokens: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]

    @property
    def num_supervised(self) -> int:
        """Tokens that count in the loss."""
        return sum(int((targets != IGNORED).sum()) for targets in self.targets)

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return sum(tokens.numel() for tokens in self.tokens)


def shift_targets(tokens_S: Tensor) -> Tensor:
    """Targets of a whole sequence: the next token; nothing for the last one.

    Labels are shifted here, before any sharding, so no shard edge can lose one.
    """
    return torch.cat((tokens_S[1:], tokens_S.new_full((min(1, tokens_S.numel()),), IGNORED)))


def batch_of(sequences: Sequence[Tensor]) -> Batch:
    """The batch of whole sequences, every token but the last of each supervised."""
    return Batch(tuple(sequences), tuple(shift_targets(tokens) for tokens in sequences))


def random_batch(lengths: Sequence[int], vocab_size: int, seed: int) -> Batch:
    """Uniform random tokens of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return batch_of(
        [torch.randint(vocab_size, (length,), generator=generator) for length in lengths]
    )


class Corpus:
    """Files read as bytes; sequences are windows at places drawn from (seed, step, sequence)."""

    def __init__(self, files: Sequence[Path], max_bytes: int = 64 * 2**20) -> None:
        parts, size = [], 0
        for path in files:
            if size >= max_bytes:
                break
            content = path.read_bytes()[: max_bytes - size]
            parts.append(content)
            size += len(content)
        self.text = b"".join(parts)

    @classmethod
    def open(cls, folder: Path | None) -> Corpus:
        """All files below a folder in name order, or the standard library's own source.

        Raises
        ------
        InstanceError
            When the folder is missing or holds no bytes.
        """
        if folder is None:
            library = Path(sysconfig.get_path("stdlib"))
            return cls(sorted(library.glob("*.py")))
        if not folder.is_dir():
            raise InstanceError.single("data", folder, "is no folder", "name a folder of text")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        corpus = cls(files)
        if len(corpus.text) < 2:
            raise InstanceError.single("data", folder, "holds no text", "put text files in it")
        return corpus

    def batch(self, lengths: Sequence[int], vocab_size: int, step: int, seed: int = 0) -> Batch:
        """Sequences of step `step`; a window wraps around the end of the corpus.

        Raises
        ------
        InstanceError
            When the vocabulary has no room for 256 bytes.
        """
        if vocab_size < BYTE_VOCABULARY:
            raise InstanceError.single(
                "model.vocab_size", vocab_size, "is too small for bytes",
                f"text is tokenised by bytes: use at least {BYTE_VOCABULARY}",
            )  # fmt: skip
        sequences = []
        for index, length in enumerate(lengths):
            # Text seeds are hashed in full, so neighbouring steps do not resemble each other.
            start = random.Random(f"{seed}/{step}/{index}").randrange(len(self.text))
            window = bytearray(self.text[start : start + length])
            while len(window) < length:
                window += self.text[: length - len(window)]
            sequences.append(torch.frombuffer(window, dtype=torch.uint8).long())
        return batch_of(sequences)

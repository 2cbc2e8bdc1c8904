"""Training data: deterministic, from any folder, from the standard library by default."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hexisolve.errors import InstanceError
from hexisolve.runtime.corpus import IGNORED, Corpus, batch_of, shift_targets
from hexisolve.runtime.launch import CorpusBatches


def test_targets_are_the_next_tokens() -> None:
    assert shift_targets(torch.tensor([5, 6, 7])).tolist() == [6, 7, IGNORED]
    assert shift_targets(torch.tensor([5])).tolist() == [IGNORED]
    assert shift_targets(torch.zeros(0, dtype=torch.long)).tolist() == []
    assert batch_of([torch.arange(4), torch.arange(1)]).num_supervised == 3


def test_step_is_the_same_everywhere_and_differs_from_the_next(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(bytes(range(256)) * 8)
    one, other = (CorpusBatches(tmp_path, (40, 7), 256, seed=3) for _ in range(2))
    for step in range(3):
        for mine, theirs in zip(one.batch(step).tokens, other.batch(step).tokens, strict=True):
            assert torch.equal(mine, theirs)
    assert not torch.equal(one.batch(0).tokens[0], one.batch(1).tokens[0])
    unlike = CorpusBatches(tmp_path, (40, 7), 256, seed=4)
    assert not torch.equal(one.batch(0).tokens[0], unlike.batch(0).tokens[0])


def test_sequences_have_the_lengths_asked_for_even_beyond_the_corpus(tmp_path: Path) -> None:
    (tmp_path / "tiny.txt").write_text("abc")
    batch = Corpus.open(tmp_path).batch([1, 2, 10], 256, step=0)
    assert [tokens.numel() for tokens in batch.tokens] == [1, 2, 10]
    text = bytes(batch.tokens[2].tolist()).decode()
    assert text in "abc" * 5


def test_standard_library_is_the_default_corpus() -> None:
    corpus = Corpus.open(None)
    assert len(corpus.text) > 10**6
    assert b"def " in corpus.text
    tokens = corpus.batch([64], 256, step=0).tokens[0]
    assert bytes(tokens.tolist()) in corpus.text


@pytest.mark.parametrize("content", [None, b""])
def test_folder_that_is_missing_or_empty_is_refused(tmp_path: Path, content: bytes | None) -> None:
    folder = tmp_path / "data"
    if content is not None:
        folder.mkdir()
        (folder / "empty.txt").write_bytes(content)
    with pytest.raises(InstanceError, match="data"):
        Corpus.open(folder)


def test_vocabulary_without_room_for_bytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(InstanceError, match="vocab_size"):
        Corpus.open(tmp_path).batch([4], 255, step=0)

"""Verification runs its many small kernels on one thread, and leaves the setting as it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from hexisolve.errors import UnsupportedPlanError
from hexisolve.runtime.verify import verify_virtual
from hexisolve.runtime.virtual import VirtualRun
from tests.plans import make, one_rank
from tests.runtime.exactness import assert_virtually_exact


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, three_threads: None) -> list[int]:
    """Threads of every virtual step."""
    counts: list[int] = []
    step = VirtualRun.step

    def counted(run: VirtualRun, *arguments: object) -> float:
        counts.append(torch.get_num_threads())
        return step(run, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(VirtualRun, "step", counted)
    return counts


def test_one_thread_inside_and_the_old_number_after(
    seen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert_virtually_exact(one_rank())
    assert set(seen) == {1}
    assert torch.get_num_threads() == 3


def test_the_old_number_after_an_error(
    three_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    instance, plan = make([((0, 4), [[(1, (0, 6))]])], [[0]], [12])
    whole = plan.batch.replicas[0].pipelines[0]
    (batch,) = plan.batch.replicas
    pipelines = (replace(whole, offload=((2,),)),)
    offloading = replace(plan.batch, replicas=(replace(batch, pipelines=pipelines),))
    with pytest.raises(UnsupportedPlanError):
        verify_virtual(instance, replace(plan, batch=offloading))
    assert torch.get_num_threads() == 3


def test_a_number_that_the_user_set_stays(seen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert_virtually_exact(one_rank())
    assert set(seen) == {3}

"""The network of the virtual executor: nothing is buffered, nothing is mistaken, nothing hangs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hexisolve.errors import RuntimeMismatchError
from hexisolve.runtime.interpreter import Requests
from hexisolve.runtime.requests import AllGather, AllToAll, Complete, Message, Post, Sum
from hexisolve.runtime.virtual import run_virtual


def send(channel: str, peer: int, value: float, size: int = 1) -> Message:
    return Message(channel, peer, True, torch.full((size,), value, dtype=torch.float64))


def receive(channel: str, peer: int, size: int = 1) -> Message:
    return Message(channel, peer, False, torch.zeros(size, dtype=torch.float64))


def steps(*groups: tuple[str, tuple[Message, ...]]) -> Requests:
    """Post each group and wait for it."""
    for handle, messages in groups:
        yield Post(handle, messages)
        yield Complete(handle)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_ring_of_joint_groups_passes_values_on(seed: int | None) -> None:
    incoming = [receive("ring", (rank - 1) % 3) for rank in range(3)]
    streams = [
        steps(("pass", (send("ring", (rank + 1) % 3, float(rank)), incoming[rank])))
        for rank in range(3)
    ]
    run_virtual(streams, rank_order_seed=seed)
    assert [float(message.payload) for message in incoming] == [2.0, 0.0, 1.0]


def test_all_send_first_around_a_ring_deadlocks_and_says_where() -> None:
    streams = [
        steps(
            ("out", (send("ring", (rank + 1) % 3, 1.0),)),
            ("in", (receive("ring", (rank - 1) % 3),)),
        )
        for rank in range(3)
    ]
    with pytest.raises(RuntimeMismatchError, match="deadlock") as caught:
        run_virtual(streams)
    for rank in range(3):
        assert f"rank {rank}: out (send to rank {(rank + 1) % 3} on ring)" in str(caught.value)


def test_two_channels_in_opposite_order_deadlock() -> None:
    first = steps(("a", (send("a", 1, 1.0),)), ("b", (send("b", 1, 1.0),)))
    second = steps(("b", (receive("b", 0),)), ("a", (receive("a", 0),)))
    with pytest.raises(RuntimeMismatchError, match="deadlock"):
        run_virtual([first, second])


def test_later_group_of_a_channel_waits_for_the_earlier_one() -> None:
    """Rank 0 offers x before y on one channel; rank 1 asks its peer for y's partner first."""

    def first() -> Requests:
        yield Post("x", (send("one", 1, 1.0),))
        yield Post("y", (receive("one", 1),))
        yield Complete("y")
        yield Complete("x")

    second = steps(("y", (send("one", 0, 2.0),)), ("x", (receive("one", 0),)))
    with pytest.raises(RuntimeMismatchError, match="deadlock"):
        run_virtual([first(), second])


def test_messages_between_a_pair_keep_their_order() -> None:
    incoming = [receive("one", 0), receive("one", 0)]
    run_virtual(
        [
            steps(("both", (send("one", 1, 1.0), send("one", 1, 2.0)))),
            steps(("both", tuple(incoming))),
        ]
    )
    assert [float(message.payload) for message in incoming] == [1.0, 2.0]


@pytest.mark.parametrize(
    "wrong", [receive("one", 0, size=2), Message("one", 0, False, torch.zeros(1))]
)
def test_size_and_dtype_must_agree(wrong: Message) -> None:
    streams = [steps(("s", (send("one", 1, 1.0),))), steps(("r", (wrong,)))]
    with pytest.raises(RuntimeMismatchError, match="between ranks"):
        run_virtual(streams)


def test_send_nobody_receives_is_reported() -> None:
    def forgetful() -> Requests:
        yield Post("s", (send("one", 1, 1.0),))

    def idle() -> Requests:
        yield from ()

    with pytest.raises(RuntimeMismatchError, match="channels one are not empty"):
        run_virtual([forgetful(), idle()])


def all_to_all(rank: int, splits: list[list[int]], received: Tensor) -> Requests:
    sizes = tuple(splits[rank])
    values = [100.0 * rank + peer for peer, size in enumerate(sizes) for _ in range(size)]
    yield AllToAll(
        "group", (0, 1, 2), torch.tensor(values), sizes, received,
        tuple(splits[peer][rank] for peer in range(3)),
    )  # fmt: skip


def test_all_to_all_with_uneven_and_zero_splits() -> None:
    splits = [[1, 2, 0], [0, 0, 3], [2, 0, 1]]
    received = [torch.zeros(sum(row[rank] for row in splits)) for rank in range(3)]
    run_virtual([all_to_all(rank, splits, received[rank]) for rank in range(3)])
    assert [tensor.tolist() for tensor in received] == [
        [0, 200, 200], [1, 1], [102, 102, 102, 202]
    ]  # fmt: skip


def test_all_to_all_whose_splits_are_no_transpose_is_refused() -> None:
    def one(rank: int, receive_elements: tuple[int, int]) -> Requests:
        yield AllToAll(
            "pair", (0, 1), torch.zeros(2), (1, 1), torch.zeros(sum(receive_elements)),
            receive_elements,
        )  # fmt: skip

    with pytest.raises(RuntimeMismatchError, match="expects 2"):
        run_virtual([one(0, (1, 1)), one(1, (2, 1))])


def test_sum_and_gather_of_uneven_shares() -> None:
    tensors = [torch.arange(5.0) * (rank + 1) for rank in range(2)]
    counts = (0, 5)

    def one(rank: int) -> Requests:
        yield Sum("pair", (0, 1), "reduce_scatter", tensors[rank], counts)
        yield AllGather("pair", (0, 1), tensors[rank], counts)

    run_virtual([one(0), one(1)])
    for tensor in tensors:
        assert tensor.tolist() == [0, 3, 6, 9, 12]


def test_different_collectives_do_not_meet() -> None:
    def summing() -> Requests:
        yield Sum("pair", (0, 1), "all_reduce", torch.zeros(1), (1,))

    def gathering() -> Requests:
        yield AllGather("pair", (0, 1), torch.zeros(1), (1, 0))

    with pytest.raises(RuntimeMismatchError, match="different collectives"):
        run_virtual([summing(), gathering()])

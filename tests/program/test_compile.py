"""Compiled programs compute causal attention exactly once, whatever the shards and heads."""

from __future__ import annotations

import pytest

from hexisolve.program.compile import compile_plan
from tests.plans import CASES
from tests.program.token_machine import TokenMachine


@pytest.mark.parametrize("ring_blocks", [1, 5, 64])
@pytest.mark.parametrize("name", sorted(CASES))
def test_every_query_meets_every_key_once(name: str, ring_blocks: int) -> None:
    instance, plan = CASES[name]()
    programs = compile_plan(instance, plan, ring_blocks=ring_blocks)
    machine = TokenMachine(programs)
    machine.run()
    per_layer = sum(instance.workload.sequence_lengths)
    assert machine.checked_rows >= per_layer * instance.model.num_layers

"""The configuration program: which column stands where with how many layers, as a linear model.

One binary variable per (stage from the end j, column, layers after it, layers of it). Layers are
covered by flow conservation over "layers covered so far", so unequal layers need nothing extra.
The rows are F1 and F2 of `hexisolve.formulation.pipeline_table`; every row is linear because the
number of stages after a stage is part of the variable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hexisolve.formulation.linear_model import LinearModel, Variable
from hexisolve.formulation.pipeline_table import Choice, Configuration, PipelineTable

Place = tuple[int, int, int, int]  # stages after, column, layers after, layers
Term = tuple[Variable, float]


@dataclass(frozen=True)
class ProgramVariables:
    """The decisions, by what they mean.

    Parameters
    ----------
    place
        x[j, column, layers after, layers]: 1 when the stage with j stages after it is like that.
    step_s
        T: step time.
    finish_s
        f: seconds after the pipeline.
    """

    place: dict[Place, Variable]
    step_s: Variable
    finish_s: Variable


@dataclass(frozen=True)
class ConfigurationProgram:
    """A linear model with the meaning of its variables."""

    model: LinearModel
    variables: ProgramVariables
    table: PipelineTable

    def configuration(self, values: Sequence[float]) -> Configuration:
        """Read the chosen stages back, first stage first."""
        chosen = sorted(
            (place for place, v in self.variables.place.items() if values[v.index] > 0.5),
            reverse=True,
        )
        num_layers = self.table.num_layers
        return tuple(
            Choice(column, num_layers - after - layers, layers)
            for _, column, after, layers in chosen
        )

    def values(self, configuration: Configuration) -> list[float]:
        """A value for every variable that means `configuration`: a start for a solver."""
        values = [0.0] * len(self.model.variables)
        after, finish = 0, 0.0
        for j, choice in enumerate(reversed(configuration)):
            place = (j, choice.column, after, choice.num_layers)
            values[self.variables.place[place].index] = 1.0
            finish = max(finish, float(self.table.finish_s[place[1:]]))
            after += choice.num_layers
        values[self.variables.finish_s.index] = finish
        values[self.variables.step_s.index] = self.table.value_s(configuration)
        return values


def build_configuration_program(
    table: PipelineTable, cutoff_s: float, num_stages: int | None = None
) -> ConfigurationProgram:
    """Write the configuration program of a table.

    Parameters
    ----------
    table
        Relaxed prices.
    cutoff_s
        Step time of a known plan: choices that cannot beat it are left out.
    num_stages
        Exact number of stages wanted; None for any.
    """
    model = LinearModel("configuration")
    place = {
        key: model.add_variable(f"x[{','.join(map(str, key))}]", 0, 1)
        for key in _places(table, cutoff_s, num_stages)
    }
    step_s = model.add_variable("step_s", 0.0, cutoff_s, is_integer=False)
    finish_s = model.add_variable("finish_s", 0.0, cutoff_s, is_integer=False)
    variables = ProgramVariables(place, step_s, finish_s)
    program = ConfigurationProgram(model, variables, table)
    _add_layer_flow(program, num_stages)
    _add_units(program)
    _add_step_time(program)
    model.minimise([(step_s, 1.0)])
    return program


def count_places(table: PipelineTable, cutoff_s: float) -> int:
    """About how many variables the program would have."""
    return int((table.total_s + table.finish_s <= cutoff_s).sum())


def _places(table: PipelineTable, cutoff_s: float, num_stages: int | None) -> list[Place]:
    """Places that are possible at all and alone do not exceed the cutoff."""
    num_layers = table.num_layers
    last_stage = table.max_stages if num_stages is None else num_stages
    places = []
    for j in range(last_stage):
        alone = table.total_s[j] + table.finish_s
        for column, after, layers in np.argwhere(alone <= cutoff_s).tolist():
            is_first = after + layers == num_layers
            if layers == 0 or after < j or after + layers > num_layers or (after and not j):
                continue
            if num_stages is not None and is_first != (j == num_stages - 1):
                continue
            places.append((j, column, after, layers))
    return places


def _add_layer_flow(program: ConfigurationProgram, num_stages: int | None) -> None:
    """Stage j starts where stage j - 1 ended; exactly one stage is the first of the model."""
    ends: defaultdict[tuple[int, int], list[Term]] = defaultdict(list)
    starts: defaultdict[tuple[int, int], list[Term]] = defaultdict(list)
    first: list[Term] = []
    for (j, _, after, layers), variable in program.variables.place.items():
        starts[j, after].append((variable, -1.0))
        if after + layers == program.table.num_layers:
            first.append((variable, 1.0))
        else:
            ends[j + 1, after + layers].append((variable, 1.0))
    model = program.model
    model.add_row("last_stage", [(v, -f) for v, f in starts.pop((0, 0), [])], "==", 1)
    for key in sorted(set(starts) | set(ends)):
        model.add_row(f"layers[{key[0]},{key[1]}]", starts[key] + ends[key], "==", 0)
    model.add_row("first_stage", first, "==", 1)


def _add_units(program: ConfigurationProgram) -> None:
    """No class gives more units than it has."""
    for unit_class, count in enumerate(program.table.available):
        terms = [
            (variable, float(program.table.units[key[1], unit_class]))
            for key, variable in program.variables.place.items()
        ]
        program.model.add_row(f"units[{unit_class}]", terms, "<=", count)


def _add_step_time(program: ConfigurationProgram) -> None:
    """F1 and F2 for every stage; none finishes after f."""
    table, variables = program.table, program.variables
    n = table.num_chunks
    step_limit_s = variables.step_s.upper
    stages = dict(_by_stage(program))
    total = [(v, _seconds(table, key) + _entry(table, key)) for key, v in variables.place.items()]
    right: list[Term] = [(variables.finish_s, 1.0), (variables.step_s, -1.0)]
    model = program.model
    for j, items in stages.items():
        own = [(v, _seconds(table, key)) for key, v in items]
        finish = [(v, float(table.finish_s[key[1:]])) for key, v in items]
        model.add_row(f"finish[{j}]", [*finish, (variables.finish_s, -1.0)], "<=", 0)
        sums = [(v, float(table.total_s[key])) for key, v in items]
        behind = [
            (v, _seconds(table, key) + _entry(table, key))
            for i in range(j)
            for key, v in stages.get(i, ())
        ]
        others = [(v, whole - t) for (v, whole), (_, t) in zip(sums, own, strict=True)]
        # Without a stage j, S - X_j is 0 and the row says nothing.
        terms = [*total, *((v, -t) for v, t in behind), *others, *right]
        model.add_row(f"F1[{j}]", terms, "<=", 0)
        if not table.loops(j):
            model.add_row(f"F2[{j}]", [*total, *right], "<=", 0)
        for k in table.loops(j):
            terms = [
                *total,
                *((v, k * t) for v, t in behind),
                *((v, (n - 1 - k * j) * t) for v, t in own),
            ]
            # Without a stage j the row must say nothing: X_j <= S <= T <= cutoff.
            big = k * step_limit_s
            terms += [(v, big) for v, _ in own]
            model.add_row(f"F2[{j},{k}]", [*terms, *right], "<=", big)


def _by_stage(
    program: ConfigurationProgram,
) -> Iterable[tuple[int, list[tuple[Place, Variable]]]]:
    groups: defaultdict[int, list[tuple[Place, Variable]]] = defaultdict(list)
    for key, variable in program.variables.place.items():
        groups[key[0]].append((key, variable))
    return sorted(groups.items())


def _seconds(table: PipelineTable, place: Place) -> float:
    return float(table.time_s[place])


def _entry(table: PipelineTable, place: Place) -> float:
    _, column, after, layers = place
    return 0.0 if after + layers == table.num_layers else float(table.entry_s[column])

"""Linear models and solutions as JSON documents, for a solver in another process.

Numbers survive exactly: Python writes the shortest text that reads back as the same float.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexisolve.formulation.linear_model import LinearModel, Row, Variable
from hexisolve.solvers.linear_solution import LinearSolution, Termination

Document = Mapping[str, Any]


def model_document(model: LinearModel) -> dict[str, Any]:
    """A model as plain lists; integers of terms are indices of variables."""
    return {
        "name": model.name,
        "variables": [[v.name, v.lower, v.upper, v.is_integer] for v in model.variables],
        "rows": [
            [row.name, list(row.terms), list(row.terms.values()), row.sense, row.right]
            for row in model.rows
        ],
        "objective": [list(model.objective), list(model.objective.values())],
    }


def model_from_document(document: Document) -> LinearModel:
    """The model that `model_document` wrote."""
    return LinearModel(
        document["name"],
        [Variable(index, *entry) for index, entry in enumerate(document["variables"])],
        [
            Row(name, dict(zip(indices, factors, strict=True)), sense, right)
            for name, indices, factors, sense, right in document["rows"]
        ],
        dict(zip(*document["objective"], strict=True)),
    )


def solution_document(solution: LinearSolution) -> dict[str, Any]:
    """A solution as a plain mapping."""
    return {
        "termination": solution.termination.value,
        "values": solution.values,
        "bound": solution.bound,
    }


def solution_from_document(document: Document) -> LinearSolution:
    """The solution that `solution_document` wrote."""
    values = document["values"]
    return LinearSolution(
        Termination(document["termination"]),
        None if values is None else tuple(values),
        document["bound"],
    )

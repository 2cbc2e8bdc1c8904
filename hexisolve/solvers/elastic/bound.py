"""The number that no batch plan of a layout is below."""

from __future__ import annotations

from hexisolve.data.instance import Instance
from hexisolve.errors import BackendError
from hexisolve.formulation.batch_bound import batch_bound_model
from hexisolve.plan.plan import Layout
from hexisolve.plan.price_book import price_book
from hexisolve.plan.synchronise import step_end
from hexisolve.solvers.highs import solve_with_highs
from hexisolve.solvers.linear_solution import Termination

# What the library's tolerances may add to the optimum of a linear program.
_TOLERANCE = 1e-6


def batch_bound_s(instance: Instance, layout: Layout, *, time_limit_s: float = 10.0) -> float:
    """Lower bound on `evaluate` over all batch plans of a layout, in seconds.

    Equation E7 of docs/elastic.md. Any chunks, pieces, orders, recompute and offload that
    `check_plan` accepts give a step of at least this.

    Raises
    ------
    NoPlanError
        When model states leave no room for any token.
    BackendError
        When the linear program is not solved in time.
    """
    book = price_book(instance)
    model = batch_bound_model(book, layout)
    found = solve_with_highs(model, time_limit_s=time_limit_s)
    if found.termination is not Termination.OPTIMAL or found.bound is None:
        raise BackendError("the bound's linear program was not solved", found.termination.value)
    end = step_end(book, layout)
    return found.bound * (1.0 - _TOLERANCE) + end.synchronisation_s + end.optimizer_s

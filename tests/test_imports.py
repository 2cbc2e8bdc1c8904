"""The layers of the package: who may import whom, and what `import hexisolve` costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "hexisolve"
BASE = {"errors", "units"}
ANYTHING = None

# What each package may import besides itself, `errors` and `units`.
MAY_IMPORT: dict[str, set[str] | None] = {
    "errors": set(),
    "units": set(),
    "data": set(),
    "cost": {"data"},
    "plan": {"cost", "data"},
    "program": {"plan", "cost", "data"},
    "formulation": {"plan", "cost", "data"},
    "solvers": {"formulation", "plan", "cost", "data"},
    "runtime": {"program", "plan", "data"},
    "report": {"program", "plan", "cost", "data"},
    "bench": ANYTHING,
    "cli": ANYTHING,
    "commands": ANYTHING,
    "__init__": ANYTHING,
    "__main__": ANYTHING,
}
SHELL = {"cli", "commands", "bench", "__main__"}

# Where each library may be imported.
EXTERNAL_HOMES: dict[str, set[str]] = {
    "torch": {"runtime"},
    "safetensors": {"runtime"},
    "ortools": {"solvers"},
    "pulp": {"solvers"},
    "highspy": {"solvers"},
    "networkx": {"data"},
    "yaml": {"data"},
    "rich": {"cli", "commands", "report", "bench"},
    "numpy": {"data", "cost", "formulation", "solvers", "program", "bench", "report"},
}
HEAVY = ("numpy", "networkx", "torch", "ortools", "pulp", "yaml", "rich")

MODULES = sorted(PACKAGE.rglob("*.py"))


def _top(path: Path) -> str:
    """The package (or top-level module) a file belongs to."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def _imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(absolute module name, only for type checkers) for every import, nested ones included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in typing_only
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            assert node.module is not None
            if node.module == "hexisolve":
                for alias in node.names:
                    yield f"hexisolve.{alias.name}", id(node) in typing_only
            else:
                yield node.module, id(node) in typing_only


def test_the_package_was_found() -> None:
    assert {"data", "cost", "plan", "cli"} <= {_top(path) for path in MODULES}


def test_every_package_has_a_rule() -> None:
    assert {_top(path) for path in MODULES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_keep_the_layers(path: Path) -> None:
    own = _top(path)
    allowed = MAY_IMPORT[own]
    for name, typing_only in _imports(path):
        package, _, rest = name.partition(".")
        if package == "hexisolve":
            target = rest.partition(".")[0]
            if target in ("__version__", ""):
                continue
            assert target in MAY_IMPORT, f"{path}: imports unknown {name}"
            if allowed is not ANYTHING:
                assert target in allowed | BASE | {own}, f"{own} must not import {name}"
            if own not in SHELL:
                assert target not in SHELL, f"{own} must not import the shell ({name})"
        elif package not in sys.stdlib_module_names:
            assert package in EXTERNAL_HOMES, f"{path}: {package} is no declared dependency"
            if not typing_only:
                assert own in EXTERNAL_HOMES[package], f"{own} must not import {package}"


def test_one_solver_library_per_adapter() -> None:
    # pulp with highspy and MathOpt's HiGHS in one process end in a segmentation fault.
    for path in MODULES:
        found = {name.partition(".")[0] for name, _ in _imports(path)}
        assert len(found & {"ortools", "pulp", "highspy"}) <= 1, path


def _loaded_after(code: str) -> tuple[set[str], float]:
    """(top-level modules loaded, CPU seconds of the whole process) of one Python process."""
    report = "import sys, time; print('', *sys.modules, time.process_time(), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    *modules, seconds = done.stderr.split()
    return {name.partition(".")[0] for name in modules}, float(seconds)


def test_import_hexisolve_is_cheap() -> None:
    runs = [_loaded_after("import hexisolve") for _ in range(3)]
    assert runs[0][0] >= {"hexisolve"}
    assert not runs[0][0] & set(HEAVY)
    # CPU seconds of the whole process, the interpreter's own start included.
    assert min(seconds for _, seconds in runs) < 0.3


def test_help_is_cheap() -> None:
    code = (
        "from hexisolve.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stop: assert stop.code == 0\n"
    )
    runs = [_loaded_after(code) for _ in range(3)]
    assert not runs[0][0] & set(HEAVY)
    assert min(seconds for _, seconds in runs) < 0.5


def test_every_public_name_loads() -> None:
    import hexisolve

    for name in hexisolve.__all__:
        assert getattr(hexisolve, name) is not None
    assert set(dir(hexisolve)) == set(hexisolve.__all__)


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    import hexisolve

    with pytest.raises(AttributeError, match="no_such_name"):
        hexisolve.no_such_name  # noqa: B018 - reading the attribute is the test


def test_lazy_names_and_all_agree() -> None:
    import hexisolve

    assert set(hexisolve._NAME2MODULE) | {"__version__"} == set(hexisolve.__all__)

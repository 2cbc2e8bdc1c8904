"""The documentation holds together: links resolve, nothing names a machine of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hexisolve
from hexisolve.cli import main

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"),
     *(REPOSITORY / "benchmarks").rglob("*.md")]
)  # fmt: skip
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)
MACHINE_PATH = re.compile(r"(?:/work/|/root/|/home/\w|/Users/\w|[A-Z]:\\\\)")


def _prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def _anchors(path: Path) -> set[str]:
    """Anchors of the headings, as GitHub forms them."""
    headings = re.findall(r"^#+\s+(.*)$", _prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_there_are_pages() -> None:
    assert {"README.md", "CHANGELOG.md", "index.md"} <= {path.name for path in PAGES}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_resolve(path: Path) -> None:
    for link in LINK.findall(_prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        found = path if not target else (path.parent / target).resolve()
        assert found.exists(), f"{path.name} links to {link}"
        assert found.is_relative_to(REPOSITORY), f"{path.name} links out of the repository: {link}"
        if anchor and found.suffix == ".md":
            assert anchor in _anchors(found), f"{path.name} links to {link}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_page_names_a_machine(path: Path) -> None:
    assert not MACHINE_PATH.search(path.read_text(encoding="utf-8"))


def test_every_page_of_docs_is_reachable_from_the_index() -> None:
    docs = REPOSITORY / "docs"
    seen: set[Path] = set()
    waiting = [docs / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        for link in LINK.findall(_prose(page)):
            target = link.partition("#")[0]
            if target and not re.match(r"[a-z]+:", target):
                waiting.append((page.parent / target).resolve())
    assert {path for path in PAGES if path.is_relative_to(docs)} <= seen


def test_every_public_name_is_documented() -> None:
    text = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
    missing = [name for name in hexisolve.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_the_errors_of_docs_python_exit_as_it_says() -> None:
    text = (REPOSITORY / "docs" / "python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+Error)`.*\| (\d) \|$", text, re.MULTILINE)
    assert len(rows) == len([name for name in hexisolve.__all__ if name.endswith("Error")]) - 1
    for name, code in rows:
        kind = getattr(hexisolve, name)
        error = kind("said") if kind not in (hexisolve.InstanceError, hexisolve.PlanError) else None
        if error is None:
            error = kind([hexisolve.Problem("field", "", "said")])
        assert _exit_code(error) == int(code), name


def _exit_code(error: hexisolve.HexisolveError) -> int:
    """What the shell exits with when a command raises this."""

    def fail(*_: object) -> int:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hexisolve.commands.show.run", fail)
        return main(["show", "demo"])


def test_no_module_names_a_machine() -> None:
    for path in (REPOSITORY / "hexisolve").rglob("*.py"):
        assert not MACHINE_PATH.search(path.read_text(encoding="utf-8")), path


def test_every_module_is_short_enough_to_read() -> None:
    for path in (REPOSITORY / "hexisolve").rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 600, path


def test_every_test_that_docs_cases_names_exists_and_no_case_is_missing() -> None:
    text = (REPOSITORY / "docs" / "cases.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 56
    for file, test in named:
        source = (REPOSITORY / file).read_text(encoding="utf-8")
        assert f"def {test}(" in source, f"{file}::{test}"
    rows = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    numbers = [int(number) for row in rows for number in row.split(",")]
    assert numbers == list(range(1, 57))

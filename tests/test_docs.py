"""The documentation holds together: links resolve, nothing names a machine of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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

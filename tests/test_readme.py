"""The README does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def _python_example() -> str:
    (example,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return example


def test_the_example_is_short() -> None:
    lines = [line for line in _python_example().splitlines() if line.strip()]
    assert len(lines) <= 22


@pytest.mark.timeout(180)
def test_the_example_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _python_example()],
        capture_output=True, text=True, timeout=170, cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in ("step", "bound", "gap", "replica 0"):
        assert word in done.stdout
    assert float(done.stdout.split()[-1]) < 1e-10


def test_the_commands_exist() -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\S+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("page", ["README.md", "docs/shell.md"])
def test_the_shell_lines_parse(page: str) -> None:
    from hexisolve.cli import build_parser

    text = (REPOSITORY / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in fences if not language]
    lines = re.findall(r"^(?:torchrun .* -m )?hexisolve (.*)$", "\n".join(blocks), re.MULTILINE)
    lines = [line for line in lines if "[" not in line and "|" not in line and line.islower()]
    assert len(lines) > 5
    for line in lines:
        build_parser().parse_args(line.split())


def test_it_says_what_is_missing_and_untested() -> None:
    assert "## What it does not do" in README
    assert "## What is untested" in README
    assert "NCCL" in README

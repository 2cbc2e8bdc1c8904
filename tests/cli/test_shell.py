"""The frame of the shell: usage, streams, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hexisolve.cli import COMMANDS

PYTHON = [sys.executable, "-m", "hexisolve"]


def test_help_names_every_command(shell) -> None:
    outcome = shell("--help")
    assert outcome.code == 0
    assert all(name in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(shell, name: str) -> None:
    outcome = shell(name, "--help")
    assert outcome.code == 0
    assert "--json" in outcome.out


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["no-such-command"],
        ["solve", "--no-such-option"],
        ["solve", "--time-limit", "soon"],
        ["solve", "--time-limit", "-1"],
        ["solve", "--time-limit", "inf"],
        ["solve", "--gap", "1"],
        ["solve", "--gap", "nan"],
        ["solve", "--context", "0"],
        ["solve", "--context", "64K"],
        ["solve", "--zero", "2"],
        ["solve", "--dtype", "int8"],
        ["solve", "--cost", "link_efficiency"],
        ["solve", "--cost", "link_efficiency=fast"],
        ["check"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_and_a_way_out(shell, args: list[str]) -> None:
    outcome = shell(*args)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "--help" in outcome.err


def test_version(shell) -> None:
    import hexisolve

    assert shell("--version").out == f"hexisolve {hexisolve.__version__}\n"


def test_a_reader_that_leaves_early_is_no_error() -> None:
    with subprocess.Popen(
        [*PYTHON, "show", "mixed-1024", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        code = process.wait(timeout=60)
    assert "Traceback" not in errors
    assert "BrokenPipe" not in errors
    assert code == 0


def test_chatter_on_descriptor_1_stays_out_of_json(tmp_path: Path) -> None:
    # A solver library that writes to the descriptor itself, as HiGHS does.
    code = (
        "import os, sys\n"
        "import hexisolve.commands.show as show\n"
        "real = show.run\n"
        "def run(args, shell):\n"
        "    os.write(1, b'chatter of a library\\n'); print('more of it')\n"
        "    return real(args, shell)\n"
        "show.run = run\n"
        "from hexisolve.cli import main\n"
        "sys.exit(main(['show', 'llama-2-7b', '--json']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.startswith("{")
    assert done.stdout.endswith("}\n")
    assert "chatter of a library" in done.stderr
    assert "more of it" in done.stderr


def test_ctrl_c_says_so_and_leaves_with_130() -> None:
    # More than a pipe holds, and nobody reads before the signal: the command waits.
    command = [*PYTHON, "show", "mixed-1024", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == "{"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.strip() == "interrupted"

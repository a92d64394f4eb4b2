"""The docs say what the program does: help texts, exit codes, links, and the README's own commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hotfire.entrypoints import cli
from hotfire.runtime.errors import ExitCode

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
COMMANDS = cli.hotfire.list_commands(click.Context(cli.hotfire))


def help_of(command: str) -> str:
    """As a terminal of 82 columns shows it; click leaves two of them free.

    From a process of its own: a command of click remembers how it was first called.
    """
    words = [sys.executable, "-m", "hotfire.entrypoints", command, "--help"]
    shown = subprocess.run(
        words, env={**os.environ, "COLUMNS": "82"}, capture_output=True, text=True, check=True
    )
    return shown.stdout.rstrip()


def section(command: str) -> str:
    return f"## hotfire {command}\n\n```text\n{help_of(command)}\n```\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented_as_it_helps(command: str) -> None:
    page = ROOT / "docs" / "cli.md"
    text = page.read_text(encoding="utf-8")
    if os.environ.get("HOTFIRE_WRITE_DOCS"):
        pattern = re.compile(rf"## hotfire {command}\n.*?(?=\n## |\Z)", re.DOTALL)
        fresh = section(command)
        text = pattern.sub(lambda _: fresh, text) if pattern.search(text) else f"{text}\n{fresh}"
        page.write_text(text, encoding="utf-8")
    assert section(command) in text, "run: HOTFIRE_WRITE_DOCS=1 pytest tests/test_docs.py"


def test_the_exit_codes_are_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert re.search(rf"^\| {code.value} \| {code.name.lower()} \|", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_in_the_docs_exists(page: Path) -> None:
    context = click.Context(cli.hotfire)
    commands = [cli.hotfire.get_command(context, name) for name in COMMANDS]
    groups = [one for one in commands if isinstance(one, click.Group)]
    commands += [below for group in groups for below in group.commands.values()]
    known = {
        option for command in commands if command for one in command.params for option in one.opts
    } | {"--help", "--version"}
    for line in re.findall(r"^\s*\$? ?hotfire .*$", page.read_text(encoding="utf-8"), re.MULTILINE):
        words = line.split("#")[0].split(" -- ")[0]
        for option in re.findall(r"(?<=\s)--?[a-z][a-z0-9-]*", words):
            assert option in known, line


def readme_example() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- tested -->\n```bash\n(.*?)```", text, re.DOTALL)
    assert found, "the README has lost its tested example"
    return found[1].strip().splitlines()


def test_the_readmes_five_lines_run(tmp_path: Path) -> None:
    lines = readme_example()
    assert len(lines) <= 5
    command = tmp_path / "bin" / "hotfire"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hotfire.entrypoints "$@"\n'
    )
    command.chmod(0o755)
    env = {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "build" / "view"),
        "HOTFIRE_HOME": str(tmp_path / "home"),
        "HOTFIRE_CACHE": str(tmp_path / "cache"),
    }
    result = subprocess.run(
        ["bash", "-euc", "\n".join(lines)],
        cwd=ROOT,
        env=env | {"OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert "accuracy" in result.stdout
    assert "Completed" in result.stderr

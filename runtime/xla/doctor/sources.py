"""The script's own files: relative names, lines, and the few things only source code tells."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hotfire.runtime.xla.doctor.timeline import Site


@dataclass(frozen=True)
class Sources:
    """`root` is where the worker had the source directory, `directory` where it is now."""

    root: str
    directory: Path
    files: Sequence[str] = field(default=())
    """Absolute names in the worker."""

    def relative(self, site: Site | None) -> tuple[str, int]:
        """File relative to the source directory, and line; empty without a site."""
        if site is None:
            return "", 0
        file, line = site
        inside = file.startswith(self.root + os.sep) if self.root else False
        return (os.path.relpath(file, self.root) if inside else file), line

    def path(self, file: str) -> Path:
        """Where a worker's file is here."""
        return self.directory / self.relative((file, 0))[0]

    def line(self, site: Site | None) -> str:
        """The stripped text of a line; empty where it cannot be read."""
        if site is None:
            return ""
        try:
            lines = self.path(site[0]).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return ""
        return lines[site[1] - 1].strip() if 0 < site[1] <= len(lines) else ""

    @cached_property
    def trees(self) -> dict[str, ast.Module]:
        """The syntax trees of the files that can be read, by their names in the worker."""
        trees = {}
        for file in self.files:
            try:
                trees[file] = ast.parse(self.path(file).read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, SyntaxError):
                continue
        return trees

    def calls(self, *names: str) -> Iterator[tuple[Site, ast.Call]]:
        """Calls of functions or methods with one of `names`; any call without names."""
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and (not names or called(node) in names):
                    yield (file, node.lineno), node

    def ragged_padding(self) -> Site | None:
        """Where batches are padded to their own longest row."""
        for site, call in self.calls():
            values = {k.arg: k.value for k in call.keywords}
            padding = values.get("padding")
            given = padding.value if isinstance(padding, ast.Constant) else None
            if (given is True or given == "longest") and "max_length" not in ast.dump(call.func):
                assert padding is not None
                return site[0], padding.lineno
            if called(call) == "pad_sequence":
                return site
            if (called(call) or "").startswith("DataCollator") and padding is None:
                return site
        return None

    def mentions(self, name: str) -> list[Site]:
        """Where `name` is read as an attribute, a variable or a key; not where argparse declares it."""
        found = []
        for file, tree in self.trees.items():
            for node in ast.walk(tree):
                read = isinstance(node, ast.Attribute) and node.attr == name
                key = isinstance(node, ast.Constant) and node.value == name
                variable = isinstance(node, ast.Name) and node.id == name
                if isinstance(node, ast.expr) and (read or key or variable):
                    found.append((file, node.lineno))
        return found

    def argument(self, name: str) -> Site | None:
        """The ``add_argument("--name", ...)`` that declares it."""
        for site, call in self.calls("add_argument"):
            words = [a.value for a in call.args if isinstance(a, ast.Constant)]
            if any(str(word).lstrip("-").replace("-", "_") == name for word in words):
                return site
        return None


def called(call: ast.Call) -> str | None:
    """The last part of the called name."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None

"""Source code from a git repository, named as pip names it: ``git+https://host/repo@revision#subdirectory=dir``."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

from hotfire.entrypoints.train.children import Children
from hotfire.entrypoints.train.talk import hidden, say
from hotfire.runtime.errors import DataError, ValidationError

PREFIX = "git+"
_SCHEMES = ("https", "http", "ssh", "file")


@dataclass(frozen=True, kw_only=True)
class GitSource:
    """``url`` without credentials; ``login`` is the ``user[:password]`` that stood in it."""

    url: str
    login: str = ""
    revision: str = ""
    subdirectory: str = ""

    @property
    def shown(self) -> str:
        return self.url + (f"@{self.revision}" if self.revision else "")


def parse(text: str) -> GitSource:
    """Read ``git+URL[@REVISION][#subdirectory=DIR]``.

    Raises:
        ValidationError: another scheme, a revision that git would take for an option, a path that leaves the repository.
    """
    url = urlsplit(text.removeprefix(PREFIX))
    if url.scheme not in _SCHEMES:
        raise ValidationError(
            f"sagemaker_submit_directory: git over {url.scheme or 'nothing'} is not known.",
            do=f"Use one of {', '.join(f'{PREFIX}{scheme}://' for scheme in _SCHEMES)}.",
        )
    path, _, revision = url.path.partition("@")
    subdirectory = parse_qs(url.fragment).get("subdirectory", [""])[0]
    if revision.startswith("-"):
        raise ValidationError(f"git revision {revision!r} begins with a dash.")
    if PurePosixPath(subdirectory).is_absolute() or ".." in PurePosixPath(subdirectory).parts:
        raise ValidationError(f"git subdirectory {subdirectory!r} is outside the repository.")
    login, _, host = url.netloc.rpartition("@")
    if url.scheme == "ssh":
        # The user of an ssh address is part of it and no secret: git@github.com.
        login, host = "", url.netloc
    clean = urlunsplit(SplitResult(url.scheme, host, path, "", ""))
    return GitSource(url=clean, login=login, revision=revision, subdirectory=subdirectory)


def clone(
    source: GitSource, destination: Path, children: Children, environment: Mapping[str, str]
) -> None:
    """Fill the empty directory ``destination`` with ``source`` at its revision (a branch, a tag or a commit).

    Raises:
        DataError: git is missing, or fails, or the revision or subdirectory is not in the repository.
    """
    if shutil.which("git", path=environment.get("PATH")) is None:
        raise DataError(
            f"git is not installed, and the source code is in {source.shown}.",
            do="Install git in the image, or give the code as a directory or archive.",
        )
    with tempfile.TemporaryDirectory(prefix=".clone-", dir=destination.parent) as scratch:
        tree = Path(scratch) / "tree"
        _Git(source, tree, children, environment).fetch()
        wanted = tree / source.subdirectory
        if not wanted.is_dir():
            raise DataError(f"{source.shown} has no directory {source.subdirectory!r}.")
        shutil.rmtree(tree / ".git")
        for entry in wanted.iterdir():
            entry.rename(destination / entry.name)


def transformers_warning(source: GitSource, installed: str | None) -> str | None:
    """A line for Hugging Face's examples of another release than the transformers installed, else None."""
    if not re.search(r"[/:]huggingface/transformers(?:\.git)?/?$", source.url):
        return None
    asked = re.match(r"v(\d+\.\d+)", source.revision)
    if installed is None or asked is None or installed.startswith(f"{asked[1]}."):
        return None
    return (
        f"warning: the examples are those of transformers {source.revision}, installed is {installed}; "
        f"they check the version, so take the branch v{'.'.join(installed.split('.')[:2])}-release or its tag"
    )


class _Git:
    def __init__(
        self, source: GitSource, tree: Path, children: Children, environment: Mapping[str, str]
    ) -> None:
        self._source, self._tree, self._children = source, tree, children
        self._environment = {**environment, "GIT_TERMINAL_PROMPT": "0", **_login(source)}

    def fetch(self) -> None:
        source = self._source
        say(f"code: cloning {source.shown}")
        if source.revision:
            # One commit is enough, whatever its name; some servers refuse that for a commit id.
            self._tree.mkdir()
            self._git("init", "--quiet")
            quick = self._try("fetch", "--quiet", "--depth", "1", source.url, source.revision)
            if quick == 0:
                self._git("checkout", "--quiet", "FETCH_HEAD")
            else:
                self._git(
                    "fetch", "--quiet", "--tags", source.url, "+refs/heads/*:refs/remotes/origin/*"
                )
                self._checkout_any(source.revision)
        else:
            self._tree.mkdir()
            self._git("clone", "--quiet", "--depth", "1", source.url, ".")
        if (self._tree / ".gitmodules").exists():
            self._git("submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1")

    def _checkout_any(self, revision: str) -> None:
        for name in (f"origin/{revision}", revision):
            if self._try("checkout", "--quiet", "--detach", name) == 0:
                return
        raise DataError(
            f"{self._source.url} has no branch, tag or commit {revision!r}.",
            do="Check the revision; commit ids must be on a branch.",
        )

    def _try(self, *arguments: str) -> int | None:
        return self._run(arguments)[0]

    def _git(self, *arguments: str) -> None:
        code, text = self._run(arguments)
        if code != 0:
            lines = [line for line in text.splitlines() if line.strip()]
            last = lines[-1].strip() if lines else f"exit code {code}"
            raise DataError(f"git {arguments[0]} of {self._source.shown} failed: {hidden(last)}")

    def _run(self, arguments: Sequence[str]) -> tuple[int | None, str]:
        argv = ["git", *arguments]
        return self._children.capture(argv, env=self._environment, cwd=self._tree, errors_only=True)


def _login(source: GitSource) -> dict[str, str]:
    """Credentials through git's environment: neither on a command line nor in .git/config."""
    if not source.login:
        return {}
    scheme, _, rest = source.url.partition("://")
    host = rest.partition("/")[0]
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{scheme}://{source.login}@{host}/.insteadOf",
        "GIT_CONFIG_VALUE_0": f"{scheme}://{host}/",
    }

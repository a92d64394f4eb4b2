"""A world in which the Dockerfiles can be built as they are, without any registry or index of the real one.

A signed apt repository with stand-ins for Neuron's packages, a package index with stand-ins for torch and its kind, and a
signed EFA archive: all served on this machine's loopback, which the build steps share (``--network=host``).
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import http.server
import io
import os
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotfire.containers import images

ROOT = Path(__file__).parents[2]
NEURON_LS = '[{"neuron_device": 0, "nc_count": 2}]'
WHEELS = {
    "torch": "2.9.1",
    "torch_xla": "2.9.0",
    "torch_neuronx": "2.9.0.2.15.32035",
    "neuronx_cc": "2.26.6360.0",
    "libneuronxla": "2.2.17544.0",
    "sagemaker_training": "5.1.4",
}
PACKAGES = {
    "aws-neuronx-runtime-lib": "2.33.10.0-abc",
    "aws-neuronx-collectives": "2.33.10.0-def",
    "aws-neuronx-tools": "2.31.15.0",
}


@dataclass(frozen=True)
class World:
    """``context`` is a build context with lock files of the stand-ins; everything else in it is this tree's."""

    url: str
    files: Path
    context: Path
    base: str
    docker: str
    environ: Mapping[str, str]

    def build(
        self, tag: str, dockerfile: str, **arguments: str
    ) -> subprocess.CompletedProcess[str]:
        """``docker build``, plain: what a user types, and where the stand-ins are."""
        given = {
            "BASE_IMAGE": self.base,
            "INDEX_URL": f"{self.url}/simple",
            **({} if "gpu" in dockerfile else self._neuron()),
            **arguments,
        }
        argv = [
            self.docker,
            "build",
            "--network=host",
            "-f",
            str(self.context / dockerfile),
            "-t",
            tag,
        ]
        argv += [
            word for name, value in given.items() for word in ("--build-arg", f"{name}={value}")
        ]
        return subprocess.run(
            [*argv, str(self.context)],
            capture_output=True,
            text=True,
            check=False,
            env=self.environ,
        )

    def _neuron(self) -> dict[str, str]:
        return {
            "NEURON_APT": f"{self.url}/apt",
            "TORCH_INDEX_URL": f"{self.url}/simple",
            "NEURON_INDEX_URL": f"{self.url}/simple",
            "EFA_URL": f"{self.url}/efa",
        }

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [self.docker, *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=self.environ)


@pytest.fixture(scope="session")
def world(
    docker_engine: dict[str, str], docker_base: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    files = tmp_path_factory.mktemp("stub-world")
    docker, extra = images.buildkit(docker_engine)
    environ = {**docker_engine, **extra}
    wheels = {name: _wheel(files / "simple", name, version) for name, version in WHEELS.items()}
    _debian(files / "apt")
    _efa(files / "efa")
    _sign(files, docker, docker_base, environ)
    base = "hotfire-test/stub-base:latest"
    # What the Dockerfiles install from the distribution is in it already: no mirror is asked.
    text = f"FROM {docker_base}\nRUN rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*\n"
    argv = [docker, "build", "-q", "-t", base, "-"]
    subprocess.run(argv, input=text.encode(), check=True, capture_output=True, env=environ)
    handler = functools.partial(_Quiet, directory=str(files))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = World(
        url=f"http://127.0.0.1:{server.server_address[1]}",
        files=files,
        context=_context(tmp_path_factory.mktemp("context"), wheels),
        base=base,
        docker=docker,
        environ=environ,
    )
    yield made
    server.shutdown()
    server.server_close()
    subprocess.run([docker, "rmi", "-f", base], check=False, capture_output=True, env=environ)
    subprocess.run(
        [docker, "builder", "prune", "-f"], check=False, capture_output=True, env=environ
    )


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


def _context(target: Path, hashes: Mapping[str, str]) -> Path:
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("containers", "entrypoints", "runtime"):
        shutil.copytree(ROOT / folder, target / folder, ignore=ignored)
    for name in ("Dockerfile.gpu", "Dockerfile.neuron", ".dockerignore"):
        shutil.copy(ROOT / name, target / name)
    locks = target / ".ci" / "locks"
    locks.mkdir(parents=True)
    for name, chosen in (
        ("gpu", ("torch", "torch_xla", "sagemaker_training")),
        ("gpu-inductor", ("torch", "sagemaker_training")),
        ("neuron", ("sagemaker_training",)),
    ):
        lines = [f"{one}=={WHEELS[one]} --hash=sha256:{hashes[one]}\n" for one in chosen]
        (locks / f"{name}.txt").write_text("".join(lines))
    return target


def _wheel(index: Path, name: str, version: str) -> str:
    """A wheel whose module says its version; its SHA-256."""
    folder = index / name.replace("_", "-")
    folder.mkdir(parents=True)
    info = f"{name}-{version}.dist-info"
    members = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if name == "sagemaker_training":
        # The real one brings a program of that name.
        members[f"{info}/entry_points.txt"] = (
            "[console_scripts]\ntrain = sagemaker_training:nowhere\n"
        )
    rows = []
    for path, text in members.items():
        digest = (
            base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        )
        rows.append(f"{path},sha256={digest},{len(text)}\n")
    members[f"{info}/RECORD"] = "".join(rows) + f"{info}/RECORD,,\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    (folder / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>')
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _debian(repository: Path) -> None:
    """Packages and an index of them; the signature comes later."""
    pool, index = repository / "pool", repository / "dists" / "jammy" / "main" / "binary-amd64"
    pool.mkdir(parents=True)
    index.mkdir(parents=True)
    paragraphs = []
    for name, version in PACKAGES.items():
        control = (
            f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: test <t@example.com>\n"
            "Description: stand-in\n"
        )
        data = {}
        if name.endswith("tools"):
            data["opt/aws/neuron/bin/neuron-ls"] = (f"#!/bin/sh\necho '{NEURON_LS}'\n", 0o755)
        else:
            data[f"opt/aws/neuron/lib/{name}.so"] = ("stand-in\n", 0o644)
        deb = _deb(control, data)
        file = pool / f"{name}_{version}_amd64.deb"
        file.write_bytes(deb)
        paragraphs.append(
            f"{control}Filename: pool/{file.name}\nSize: {len(deb)}\nSHA256: {hashlib.sha256(deb).hexdigest()}\n"
        )
    listing = "\n".join(paragraphs).encode()
    (index / "Packages").write_bytes(listing)
    (repository / "dists" / "jammy" / "Release").write_text(
        "Origin: test\nSuite: jammy\nCodename: jammy\nComponents: main\nArchitectures: amd64\n"
        "Date: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n"
        f" {hashlib.sha256(listing).hexdigest()} {len(listing)} main/binary-amd64/Packages\n"
    )


def _deb(control: str, data: Mapping[str, tuple[str, int]]) -> bytes:
    """deb(5): an ar archive of a version and two tar files."""
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _tar({"control": (control, 0o644)}),
        "data.tar.gz": _tar(data),
    }
    out = b"!<arch>\n"
    for name, content in members.items():
        out += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        out += content + b"\n" * (len(content) % 2)
    return out


def _tar(files: Mapping[str, tuple[str, int]], prefix: str = "./") -> bytes:
    out = io.BytesIO()
    parents = {str(one) for name in files for one in Path(name).parents if str(one) != "."}
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in sorted(parents):  # dpkg makes no directory that is not listed
            entry = tarfile.TarInfo(f"{prefix}{folder}")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, (text, mode) in files.items():
            info = tarfile.TarInfo(f"{prefix}{name}")
            info.size, info.mode = len(text), mode
            tar.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(out.getvalue())


def _efa(folder: Path) -> None:
    folder.mkdir()
    script = (
        '#!/bin/sh\nset -e\nmkdir -p /opt/amazon/efa/bin\necho "$@" > /opt/amazon/efa/bin/fi_info\n'
    )
    (folder / "aws-efa-installer-1.47.0.tar.gz").write_bytes(
        _tar({"aws-efa-installer/efa_installer.sh": (script, 0o755)}, prefix="")
    )


def _sign(files: Path, docker: str, base: str, environ: Mapping[str, str]) -> None:
    """With a key that is thrown away. In a container: gpg need not be on this machine."""
    script = (
        "export GNUPGHOME=$(mktemp -d); cd /world; "
        "gpg --batch --quiet --passphrase '' --quick-generate-key test@example.com rsa2048 sign never; "
        "gpg --batch --armor --export > apt/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB; "
        "cp apt/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB efa/aws-efa-installer.key; "
        "gpg --batch --clearsign -o apt/dists/jammy/InRelease apt/dists/jammy/Release; "
        "gpg --batch --detach-sign -o efa/aws-efa-installer-1.47.0.tar.gz.sig efa/aws-efa-installer-1.47.0.tar.gz; "
        f"chown -R {os.getuid()}:{os.getgid()} ."
    )
    argv = [docker, "run", "--rm", "-v", f"{files}:/world", base, "sh", "-ec", script]
    subprocess.run(argv, check=True, capture_output=True, env=dict(environ))

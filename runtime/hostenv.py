"""What a host of the process backend takes over from the caller's environment, by name and nothing else. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hotfire.runtime.errors import ValidationError

PASSED = (
    # Where this machine reaches the network through a proxy, or trusts a certificate authority of its own.
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "AWS_CA_BUNDLE",
    # Where packages come from.
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    # Where S3 is, when it is not AWS.
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
)
_ALWAYS = ("PATH", "LANG", "LC_ALL", "TZ")


def taken_over(
    environ: Mapping[str, str], asked: Iterable[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """The always-present part of a host's environment, and the variables that pass by name.

    ``asked`` are the names of ``--env NAME``. The second mapping may hold secrets (an index URL with a password) and
    is therefore never written down or printed, except for its names.

    Raises:
        ValidationError: a name in ``asked`` is not set.
    """
    base = {name: environ[name] for name in _ALWAYS if environ.get(name)}
    base.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    base.setdefault("LANG", "C.UTF-8")
    names = [*PASSED, *(name.lower() for name in PASSED[:4])]
    passed = {name: environ[name] for name in names if environ.get(name)}
    for name in asked:
        if name not in environ:
            raise ValidationError(
                f"--env {name}: the variable is not set here.",
                do=f"Export it first, or give a value: --env {name}=VALUE",
            )
        passed[name] = environ[name]
    return base, passed

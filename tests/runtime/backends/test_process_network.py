"""Addresses and networks of the process backend, with real sockets."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hotfire.runtime.backends import findings, network
from hotfire.runtime.errors import ValidationError

if TYPE_CHECKING:
    from tests.runtime.backends.conftest import Lab

HOSTS = ("algo-1", "algo-2")
SERVER = """
import socket
with socket.create_server(("0.0.0.0", 7001)) as server:
    print("listening", flush=True)
    connection, peer = server.accept()
    connection.sendall(b"hello " + peer[0].encode())
"""
CLIENT = """
import socket, time
server = socket.create_server(("0.0.0.0", 7001))
for _ in range(400):
    try:
        with socket.create_connection(("algo-1", 7001), 5) as connection:
            print(connection.recv(100).decode())
            break
    except ConnectionRefusedError:
        time.sleep(0.02)
"""


def test_a_block_of_loopback_addresses_for_each_job(lab: Lab) -> None:
    with lab.open(*HOSTS, job="same") as one:
        first = {place.address for place in one.places.values()}
        with lab.open(*HOSTS, job="same") as two:
            second = {place.address for place in two.places.values()}
            assert {place.network_interface for place in two.places.values()} == {"lo"}
    with lab.open(*HOSTS, job="same") as again:
        assert {place.address for place in again.places.values()} == first
    assert len(first | second) == 4


def test_a_reserved_block_is_free_again_after_an_error() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError), network.host_network("seed", HOSTS) as net:
            found = dict(net.addresses)
            raise RuntimeError
        with network.host_network("seed", HOSTS) as net:
            assert net.addresses == found


def test_hosts_reach_each_other_on_loopback(lab: Lab) -> None:
    """On the machine's network the wildcard address is shared, so each host binds its own name."""
    with lab.open(*HOSTS) as session:
        server = lab.start(session, ("python3", "-I", "-c", SERVER.replace("0.0.0.0", "algo-1")))
        code, text = lab.run(
            session,
            ("python3", "-I", "-c", CLIENT.replace("0.0.0.0", "algo-2")),
            host="algo-2",
        )
        assert server.wait(20) == 0
    assert code == 0
    assert text.startswith("hello 127.")


def test_private_hosts_bind_the_same_port_and_talk_by_name(lab: Lab) -> None:
    with lab.open(*HOSTS, network="private") as session:
        places = session.places
        assert {place.network_interface for place in places.values()} == {"eth0"}
        assert len({place.address for place in places.values()}) == 2
        server = lab.start(session, ("python3", "-I", "-c", SERVER))
        code, text = lab.run(session, ("python3", "-I", "-c", CLIENT), host="algo-2")
        assert server.wait(20) == 0
    assert (code, text) == (0, f"hello {places['algo-2'].address}\n")
    assert places["algo-1"].address.startswith("10.")


def test_a_private_host_has_loopback_and_eth0_and_no_descriptor_of_ours(lab: Lab) -> None:
    script = (
        "import socket, os, json; s = socket.create_server(('127.0.0.1', 0));"
        "socket.create_connection(s.getsockname()).close();"
        "print(json.dumps([[n for _, n in socket.if_nameindex()], os.listdir('/sys/class/net'),"
        " os.listdir('/proc/self/fd'), os.path.isdir('/sys/fs/cgroup')]))"
    )
    with lab.open(network="private") as session:
        code, text = lab.run(session, ("python3", "-I", "-c", script))
    assert code == 0, text
    interfaces, in_sys, fds, cgroups = json.loads(text)
    assert interfaces[:2] == ["lo", "eth0"]
    assert set(in_sys) == set(interfaces)
    assert len(fds) == 5  # three streams, the socket, the listing
    assert cgroups == Path("/sys/fs/cgroup").is_dir()


def test_isolated_hosts_see_each_other_and_nothing_else(lab: Lab) -> None:
    script = """
import socket
for address in ("192.0.2.1", "127.99.0.1", "8.8.8.8"):
    try:
        socket.create_connection((address, 9), 2)
    except OSError as error:
        print(error.strerror)
"""
    with lab.open(*HOSTS, isolated=True) as session:
        code, text = lab.run(session, ("python3", "-I", "-c", script))
        server = lab.start(session, ("python3", "-I", "-c", SERVER))
        talked, _ = lab.run(session, ("python3", "-I", "-c", CLIENT), host="algo-2")
        assert server.wait(20) == talked == 0
    assert (code, text) == (
        0,
        "Network is unreachable\nConnection refused\nNetwork is unreachable\n",
    )


def test_two_private_jobs_at_once(lab: Lab) -> None:
    with (
        lab.open(network="private", job="same") as one,
        lab.open(network="private", job="same") as two,
    ):
        container = lab.start(two, "sleep 1000")
        code, text = lab.run(one, "getent hosts algo-1")
        address = one.places["algo-1"].address
        assert (code, text.split()[0]) == (0, address)
        assert two.places["algo-1"].address == address
        assert container.poll() is None


def test_a_private_host_can_be_started_again_and_again(lab: Lab) -> None:
    with lab.open(network="private") as session:
        assert [lab.run(session, f"exit {n}")[0] for n in range(5)] == list(range(5))


def test_the_platforms_own_service_is_for_the_host_alone(lab: Lab) -> None:
    """Contract 8: credentials at 169.254.170.2, without a proxy, and nowhere else on this machine."""
    taken: list[socket.socket] = []
    lab.serve = taken.append
    script = "import socket; print(socket.create_connection(('169.254.170.2', 80), 5).recv(9))"
    with lab.open(*HOSTS, network="private") as session:
        container = lab.start(session, ("python3", "-I", "-c", script))
        (listener,) = taken
        with listener:
            connection, peer = listener.accept()
            with connection:
                connection.sendall(b"secret")
            assert peer[0] == "169.254.170.2"
            assert container.wait(20) == 0
    assert lab.directory().log.read_text() == "b'secret'\n"
    with lab.open(isolated=True) as session:
        assert lab.run(session, ("python3", "-I", "-c", script))[0] == 1
    assert len(taken) == 1


@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("kind", ["relocated"])
def test_a_private_network_needs_namespaces(lab: Lab, kind: str, isolated: bool) -> None:
    what = "network isolation" if isolated else "--network private"
    with (
        pytest.raises(ValidationError, match=what),
        lab.open(network="private", isolated=isolated, isolation=kind),
    ):
        raise AssertionError("it was opened")


def test_more_hosts_than_addresses_are_refused() -> None:
    with (
        pytest.raises(ValidationError, match="251 hosts"),
        network.host_network("seed", [str(n) for n in range(251)]),
    ):
        raise AssertionError("it was opened")


def test_setup_report_says_what_works_by_trying() -> None:
    found = {finding.what.split(" ")[0]: finding for finding in findings.setup_report("/usr/bin/x")}
    assert found["own"].works
    assert found["--network"].works
    assert found["/dev/fuse"].works == os.access("/dev/fuse", os.R_OK | os.W_OK)
    assert all(finding.works or finding.commands for finding in found.values())

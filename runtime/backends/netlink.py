"""The few requests to the kernel's network configuration (rtnetlink) that a host's private network takes.

Written out here because ``ip`` is not on every machine, and because a process costs more than a message.
"""

from __future__ import annotations

import os
import struct
from _socket import (
    AF_INET,
    AF_NETLINK,
    AF_UNIX,
    SCM_RIGHTS,
    SO_REUSEADDR,
    SOCK_RAW,
    SOCK_SEQPACKET,
    SOCK_STREAM,
    SOL_SOCKET,
    inet_aton,
)
from _socket import socket as raw_socket

_RTM_NEWLINK, _RTM_NEWADDR, _RTM_GETLINK = 16, 20, 18
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_EXCL, _NLM_F_CREATE = 1, 4, 0x200, 0x400
_NLMSG_ERROR = 2
_IFF_UP = 1
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_NET_NS_PID = 3, 10, 18, 19
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SCOPE_HOST = 254


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _name(name: str) -> bytes:
    return _attribute(_IFLA_IFNAME, name.encode() + b"\0")


def _link(index: int = 0, flags: int = 0) -> bytes:
    return struct.pack("=BxHiII", 0, 0, index, flags, flags)


class Network:
    """A connection to the network namespace that this process is in. Every method raises ``OSError``."""

    def __init__(self) -> None:
        self._socket = raw_socket(AF_NETLINK, SOCK_RAW, 0)
        self._socket.bind((0, 0))

    def close(self) -> None:
        self._socket.close()

    def _ask(self, kind: int, flags: int, body: bytes) -> bytes:
        flags |= _NLM_F_REQUEST
        self._socket.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        answer = self._socket.recv(65536)
        _, got, _, _, _ = struct.unpack_from("=IHHII", answer)
        if got == _NLMSG_ERROR and (number := -struct.unpack_from("=i", answer, 16)[0]):
            raise OSError(number, os.strerror(number))
        return answer

    def _change(self, kind: int, body: bytes, *, create: bool = True) -> None:
        extra = _NLM_F_CREATE | _NLM_F_EXCL if create else 0
        self._ask(kind, _NLM_F_ACK | extra, body)

    def index(self, name: str) -> int:
        """The number of an interface."""
        answer = self._ask(_RTM_GETLINK, 0, _link() + _name(name))
        return int(struct.unpack_from("=i", answer, 20)[0])

    def up(self, name: str) -> None:
        self._change(_RTM_NEWLINK, _link(self.index(name), _IFF_UP), create=False)

    def add_bridge(self, name: str) -> None:
        info = _attribute(_IFLA_LINKINFO, _attribute(_IFLA_INFO_KIND, b"bridge"))
        self._change(_RTM_NEWLINK, _link() + _name(name) + info)

    def add_veth(self, name: str, bridge: str, peer: str, pid: int) -> None:
        """A cable from ``bridge`` to the interface ``peer`` in the network namespace of process ``pid``."""
        other = _link() + _name(peer) + _attribute(_IFLA_NET_NS_PID, struct.pack("=I", pid))
        info = _attribute(_IFLA_INFO_KIND, b"veth")
        info += _attribute(_IFLA_INFO_DATA, _attribute(_VETH_INFO_PEER, other))
        master = _attribute(_IFLA_MASTER, struct.pack("=i", self.index(bridge)))
        self._change(
            _RTM_NEWLINK, _link() + _name(name) + _attribute(_IFLA_LINKINFO, info) + master
        )

    def add_address(self, name: str, address: str, prefix: int) -> None:
        """An IPv4 address; one with prefix 32 stays inside the namespace."""
        scope = _SCOPE_HOST if prefix == 32 else 0
        header = struct.pack("=BBBBi", AF_INET, prefix, 0, scope, self.index(name))
        packed = inet_aton(address)
        body = header + _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
        self._change(_RTM_NEWADDR, body)


def hand_over(channel: int, address: str, port: int) -> None:
    """Listen in this process's network and pass the socket to whoever reads ``channel``, in a message of its own."""
    listener = raw_socket(AF_INET, SOCK_STREAM)
    listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(16)
    messenger = raw_socket(AF_UNIX, SOCK_SEQPACKET, 0, channel)
    fds = struct.pack("=i", listener.fileno())
    messenger.sendmsg([b"socket"], [(SOL_SOCKET, SCM_RIGHTS, fds)])
    messenger.detach()
    listener.close()

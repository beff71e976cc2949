"""Whether a network address means this machine.

Owns the reading of GT's ``host`` and ``port``. Asks only this machine: its name, its interfaces and
its hosts file. Never asks a name server, which may be slow, and may name machines that share no
memory with this one.
"""

from __future__ import annotations

import ipaddress
import os
import pathlib
import socket

from shmgpu.errors import ConfigError

HOSTS = pathlib.Path("/etc/hosts")
LOCAL = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")
PORTS = range(1, 1 << 16)


def refuse_others(host: object, port: object) -> None:
    """Raise ConfigError where host and port (None: not given) are not this machine's.

    The port is read and not needed: there is no network between processes of one machine.
    """
    if port is not None and not _is_port(port):
        raise ConfigError(f"port={port!r} is not a port: pass a number from 1 to 65535, or none")
    if host is not None and not isinstance(host, str):
        raise ConfigError(f"host={host!r} is not a host: pass its name or address as text, or none")
    if host and not is_this(host):
        raise ConfigError(
            f"host={host!r} is another machine, and shmgpu shares memory within one: start a "
            "broker there (shmgpu up) and connect() from a program that runs there"
        )


def split(path: object) -> tuple[str, int] | None:
    """Host and port of ``"host:port"``; None of what is a socket's path.

    Raises:
        ConfigError: it looks like the former, and is not.
    """
    if not isinstance(path, str) or ":" not in path or "/" in path or path.startswith(("@", "\0")):
        return None
    host, _, port = path.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not _is_port(port):
        raise ConfigError(
            f'path={path!r} is neither a socket\'s path nor "host:port", with a port from 1 to '
            "65535: pass one of them"
        )
    return host, int(port)


def _is_port(port: object) -> bool:
    if isinstance(port, str):
        return port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) in PORTS
    return isinstance(port, int) and not isinstance(port, bool) and port in PORTS


def is_this(host: str) -> bool:
    """Whether a name, in whatever case, or an address is this machine's own."""
    name = host.strip().rstrip(".").lower()
    own = os.uname().nodename.rstrip(".").lower()
    if name in {*LOCAL, own, own.partition(".")[0]} or name.endswith(".localhost"):
        return True
    return any(_is_own(address) for address in _literal(name) or _listed(name))


def _literal(name: str) -> list[str]:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return []
    return [name]


def _listed(name: str) -> list[str]:
    """Addresses that the hosts file gives that name."""
    try:
        lines = HOSTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    rows = [line.partition("#")[0].lower().split() for line in lines]
    return [row[0] for row in rows if name in row[1:] and _literal(row[0])]


def _is_own(text: str) -> bool:
    """A loopback address, or one that a socket can be bound to: an interface has it."""
    address = ipaddress.ip_address(text)
    plain = getattr(address, "ipv4_mapped", None) or address
    if plain.is_loopback or plain.is_unspecified:
        return True
    if plain.is_multicast:
        return False
    family = socket.AF_INET if plain.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # The text is numeric, so nobody is asked for it; a scope (fe80::1%eth0) is read here.
            flags = socket.AI_NUMERICHOST
            found = socket.getaddrinfo(str(plain), 0, family, socket.SOCK_DGRAM, 0, flags)
            probe.bind(found[0][4])
    except OSError:
        return False
    return True

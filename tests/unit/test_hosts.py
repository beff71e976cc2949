"""Which network addresses mean this machine, found out without asking the network."""

from __future__ import annotations

import os
import socket

import pytest

from shmgpu import ConfigError
from shmgpu.attach import hosts


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """A name that would have to be asked for is an error of the test."""
    real = socket.getaddrinfo

    def numeric_only(host, port, family=0, kind=0, protocol=0, flags=0):
        assert flags & socket.AI_NUMERICHOST, f"{host} was looked up"
        return real(host, port, family, kind, protocol, flags)

    def refused(*_):
        raise AssertionError("a name was looked up")

    monkeypatch.setattr(socket, "getaddrinfo", numeric_only)
    for name in ("gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getfqdn"):
        monkeypatch.setattr(socket, name, refused)


@pytest.fixture
def hosts_file(tmp_path, monkeypatch):
    path = tmp_path / "hosts"
    path.write_text("127.0.1.1 Gpubox.example.org gpubox # not other\n192.0.2.7 other\nbad line\n")
    monkeypatch.setattr(hosts, "HOSTS", path)


def own_addresses():
    """What the interfaces have, as a connected datagram socket's own end shows: sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []  # no route
        return [probe.getsockname()[0]]


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST", "Localhost.", "api.localhost", "127.0.0.1", "127.0.0.2", "::1"),
        *("0.0.0.0", "::", "::ffff:127.0.0.1", "gpubox", "GPUBOX.example.org", os.uname().nodename),
        *(os.uname().nodename.upper(), *own_addresses()),
    ],
)
def test_this_machine_goes_by_many_names(hosts_file, host):
    assert hosts.is_this(host)


@pytest.mark.parametrize(
    "host",
    ["other", "10.255.254.253", "192.0.2.7", "2001:db8::7", "224.0.0.1", "not", "no such", "1"],
)
def test_another_machine_is_not_this_one(hosts_file, host):
    assert not hosts.is_this(host)


def test_without_a_hosts_file_names_are_still_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "HOSTS", tmp_path / "missing")
    assert hosts.is_this("localhost") and not hosts.is_this("gpubox")


@pytest.mark.parametrize(
    "text", ["localhost:99999999", ":5", "localhost:0", "localhost:", "localhost:x", "a:٣"]
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ConfigError, match='neither a socket\'s path nor "host:port"'):
        hosts.split(text)


def test_an_address_is_told_from_a_path():
    assert hosts.split("[::1]:29500") == ("::1", 29500)
    assert hosts.split("127.0.0.2:3") == ("127.0.0.2", 3)
    for path in (None, "/run/a:b", "@a:1", "broker.sock", b"a:1"):
        assert hosts.split(path) is None


@pytest.mark.parametrize("port", ["zzz", 0, 65536, -1, 1.5, True, ""])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(ConfigError, match="is not a port"):
        hosts.refuse_others("localhost", port)
    hosts.refuse_others("localhost", "29500")
    hosts.refuse_others(None, 1)


def test_a_host_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match="host=5 is not a host"):
        hosts.refuse_others(5, None)

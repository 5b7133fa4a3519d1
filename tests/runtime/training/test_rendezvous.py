"""Ranks meet at one address of the machine, and listen there."""

from __future__ import annotations

import os
import socket

import pytest

from runtime.training.group import interface_of, listen_near, open_store, url_of
from tests.runtime.sockets import listening


def _first_address() -> str:
    """An address of this machine's that others reach; loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documents: nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


HERE = _first_address()


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)


def test_the_store_listens_at_its_address_alone() -> None:
    store = open_store(HERE)
    assert [host for host, port in listening([os.getpid()]) if port == store.port] == [HERE]


@pytest.mark.parametrize("rendezvous", [None, "file:///somewhere", "tcp://127.0.0.1:9"])
def test_ranks_of_one_machine_listen_on_loopback(rendezvous: str | None) -> None:
    listen_near(rendezvous)
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")


def test_ranks_listen_where_they_reach_the_others() -> None:
    listen_near(url_of(HERE, 9))
    assert os.environ["GLOO_SOCKET_IFNAME"] == interface_of(HERE)
    os.environ["GLOO_SOCKET_IFNAME"] = "chosen"
    listen_near(None)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "chosen"


def test_an_address_of_nobody_has_no_interface() -> None:
    assert interface_of("192.0.2.77") is None and interface_of("127.0.0.1") == "lo"


def test_a_place_with_colons_is_put_in_brackets() -> None:
    assert url_of("fd00::2", 80) == "tcp://[fd00::2]:80"

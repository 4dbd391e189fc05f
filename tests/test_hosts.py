"""Hosts that are really apart, in network namespaces; benchmarks/hosts.py has more of what can happen to them."""

import socket

import pytest

from benchmarks import hosts
from tierank.distributed import processes

apart = pytest.mark.skipif(not hosts.can_make_hosts(), reason="needs Linux, root and iproute2")


@apart
def test_hosts_train_together_until_a_cable_is_pulled():
    """Gloo would listen at the address of the host's own name, which on many systems no other host finds."""
    with hosts.training(2) as run:
        run.train("urank", "--set", "max_epochs=100000", "--set", "patience=100000", "--timeout", "15")
        run.until("m.checkpoint/state.json")
        # Gradients went over the wire: more than the bytes of meeting each other.
        assert min(run.hosts.sent(k) for k in range(2)) > 10_000
        run.hosts.pull(1)
        assert run.wait() == [3, 3], run.said
        first, second = (run.hosts.address(k) for k in range(2))
        assert f"process 0 of 2 on {first}: lost contact with the other processes (1 on {second}): " in run.said[0]
        assert f"process 1 of 2 on {second}: lost contact with the other processes (0 on {first}): " in run.said[1]
        assert "train again with the same checkpoint to continue" in run.said[0]


def test_the_interface_of_an_address(monkeypatch):
    assert processes._interface_of("127.0.0.1").startswith("lo")
    assert processes._interface_of("203.0.113.9") is None  # nobody's (RFC 5737)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "chosen")
    with processes._bound_to("127.0.0.1"):
        assert processes.os.environ["GLOO_SOCKET_IFNAME"] == "chosen"
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    with processes._bound_to("127.0.0.1"):
        assert processes.os.environ["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert "GLOO_SOCKET_IFNAME" not in processes.os.environ


def test_the_first_hosts_own_name_is_not_taken_for_its_address(monkeypatch):
    towards = {"db1": "127.0.1.1", processes._ELSEWHERE: "10.0.0.7", "127.0.0.1": "127.0.0.1", "10.0.0.8": "10.0.0.7"}
    monkeypatch.setattr(processes, "_address_towards", towards.__getitem__)
    assert [processes._own_address(first) for first in ("db1", "127.0.0.1", "10.0.0.8")] == [
        "10.0.0.7",
        "127.0.0.1",
        "10.0.0.7",
    ]
    assert socket.inet_aton(processes._ELSEWHERE)

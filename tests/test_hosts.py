"""Hosts that are really apart, in network namespaces; benchmarks/hosts.py has more of what can happen to them."""

import socket
import sys
import time

import pytest

from benchmarks import hosts, traffic
from benchmarks.cable import Speed
from tierank.distributed import processes

apart = pytest.mark.skipif(not hosts.can_make_hosts(), reason="needs Linux, root, iproute2 and /dev/net/tun")


# The cable


@apart
def test_a_cable_delays_and_paces_packets():
    """Two hosts know no other way to each other, so nothing can come sooner: a busy machine only makes it later."""
    program = "import socket, sys, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('', 7)); "
    hear = (
        "s.settimeout(60); times = [(float(s.recv(2000)), time.monotonic()) for _ in range(20)]; "
        "print(min(heard - said for said, heard in times), times[-1][1] - times[0][0])"
    )
    say = "[s.sendto(repr(time.monotonic()).ljust(1472).encode(), (sys.argv[1], 7)) for _ in range(20)]"
    with hosts.Hosts(2, Speed.of(20, 1)) as pair:
        listener = pair.start(0, [sys.executable, "-c", f"{program}print(flush=True); {hear}"])
        assert listener.stdout.readline() == "\n"  # it listens
        assert pair.start(1, [sys.executable, "-c", program + say, pair.address(0)]).communicate(timeout=60)[0] == ""
        first, last = map(float, listener.communicate(timeout=60)[0].split())
        assert first >= 0.02 + 1500 * 8e-6  # 1,500 bytes with headers, at 1 Mbit/s
        assert last >= 0.02 + 20 * 1500 * 8e-6
        assert pair.cable.sent == [0, 20 * 1500]


@apart
def test_a_pulled_cable_carries_nothing():
    with hosts.Hosts(2) as pair:
        pair.pull(1)
        program = "import socket, sys; socket.create_connection((sys.argv[1], 7), 1)"
        assert "timed out" in pair.start(1, [sys.executable, "-c", program, pair.address(0)]).communicate(timeout=60)[0]
        assert pair.cable.sent == [0, 0]
        pair.plug(1)
        refused = pair.start(1, [sys.executable, "-c", program, pair.address(0)]).communicate(timeout=60)[0]
        assert "ConnectionRefusedError" in refused
        assert min(pair.cable.sent) > 0


# Training


@apart
@pytest.mark.parametrize(("kind", "n"), [("trees", 2), ("network", 3)])
def test_hosts_send_what_the_cost_model_says(kind, n, tmp_path):
    data = hosts.tierank.make_ranking(60, n_features=30, mean_length=40, max_length=90, seed=5)
    folder = tmp_path / "data.tierank"
    hosts.tierank.write(data, folder)
    few, many = (hosts.measured(kind, amount, n, Speed.of(1, 100), folder) for amount in (1, 5))
    _, expected = hosts.expected(kind, n, data)
    sent = (sum(many.sent) - sum(few.sent)) / 4
    # Answers to packets vary, and so does what is sent twice because a busy host answered late.
    assert 0.9 * expected.sent < sent < 1.3 * expected.wire


@apart
@pytest.mark.parametrize(("ranker", "long"), [("umart", "n_trees=2000"), ("urank", "max_epochs=100000")])
def test_a_cable_is_pulled_for_a_moment_and_then_for_good(ranker, long):
    """Gloo would listen at the address of the host's own name, which on many systems no other host finds."""
    checkpoint, few = "m.checkpoint/state.json", ("--set", "n_leaves=4") if ranker == "umart" else ()
    with hosts.training(2, Speed.of(2, 100)) as run:
        run.train(ranker, "--set", long, "--set", "patience=100000", *few, "--timeout", "30")
        run.until(checkpoint)
        # Gradients went over the wire: more than the bytes of meeting each other.
        assert min(run.hosts.sent(k) for k in range(2)) > 10_000
        run.hosts.pull(1)
        time.sleep(1)
        pulled = time.time()
        run.hosts.plug(1)
        run.until(checkpoint, since=pulled)
        run.hosts.pull(1)
        assert run.wait() == [3, 3], run.said
        first, second = (run.hosts.address(k) for k in range(2))
        assert f"process 0 of 2 on {first}: lost contact with the other processes (1 on {second}): " in run.said[0]
        assert f"process 1 of 2 on {second}: lost contact with the other processes (0 on {first}): " in run.said[1]
        assert "train again with the same checkpoint to continue" in run.said[0]
        run.hosts.plug(1)
        stopped = time.time()
        run.train(ranker, "--set", long, "--set", "patience=100000", *few, "--resume")
        run.until(checkpoint, since=stopped)  # it goes on from there


# The cost model, by hand


def test_what_a_tree_sends():
    """Two hosts: 14 times half of the histograms and the best splits, and the sums of the root, from each."""
    found = traffic.of_tree(2, 15, 1000)
    assert found == traffic.Traffic(2 * (14 * (8000 + 600) + 24), 14 * (8000 + 600) + 24, 29)
    # Four: three quarters, in two messages.
    found = traffic.of_tree(4, 2, 1000)
    assert found == traffic.Traffic(4 * (12000 + 3 * 600 + 3 * 24), 12000 + 3 * 600 + 3 * 24, 6)


def test_hosts_that_are_not_a_power_of_two_send_histograms_through_a_neighbour():
    """The third sends all to the second, which exchanges one third for two with the first, and gives one third back."""
    found = traffic.of_tree(3, 2, 3000)
    small = 2 * (600 + 24)
    assert found == traffic.Traffic(48_000 * 7 / 3 + 3 * small, 48_000 * 2 + small, 3 + 2 * 2)
    # Large ones go around.
    large = 48 * 2**20
    assert traffic.of_tree(3, 2, large // 16) == traffic.Traffic(
        2 * large + 3 * small, large * 2 / 3 + small, 2 + 2 * 2
    )


def test_what_a_step_sends():
    assert traffic.of_step(2, 998) == traffic.Traffic(8000, 4000, 2)
    assert traffic.of_step(5, 998) == traffic.Traffic(5 * 16000, 16000, 2)
    # More than 4 MiB from each go around a ring: a third of it at a time, four times.
    assert traffic.of_step(3, 3 * 2**20 - 2) == traffic.Traffic(4 * 12 * 2**20, 16 * 2**20, 8)


# Addresses


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

"""The ZeroMQ transport with peers that die, stop and come back,
and on ports that it cannot have."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from threading import Thread
from types import SimpleNamespace

import pytest
import zmq
from zeromq_rig import WatchedTransport, floats, process, raw, transport, update

from gossip.core.events import LinkDown, LinkUp
from gossip.core.messages import Envelope, Ping
from gossip.errors import AddressInUse, ConfigError
from gossip.transport import assembly, links, sockets, waiting
from gossip.transport.base import Traffic
from gossip.transport.codec import decode
from gossip.transport.unix import UnixLane
from gossip.transport.zeromq import ZeroMQTransport

MIB = 2**20


def pair(limit: int):
    first, second = transport(local=0, limit=limit), transport(local=1, limit=limit)
    watched = WatchedTransport(first, second)
    watched.link(first, 1, second)
    return first, second, watched


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "192.0.2.1", "::", "example.org", ""])
def test_only_loopback_is_listened_on(host: str):
    with pytest.raises(ConfigError, match="without keys"):
        transport(host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_any_loopback_address_will_do(host: str):
    try:
        first, second = transport(local=0, host=host), transport(local=1, host=host)
    except ConfigError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    watched = WatchedTransport(first, second)
    watched.link(first, 1, second)


@pytest.mark.parametrize("option", ["control_port", "bulk_port"])
def test_a_port_that_is_taken_names_its_holder(option: str):
    holder = transport()
    port = int(holder.control.rpartition(":")[2])
    with pytest.raises(AddressInUse, match=f"{port} is taken by pid {os.getpid()}"):
        transport(**{option: port})
    holder.close()
    transport(**{option: port}).close()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_a_config_error(port: int):
    with pytest.raises(ConfigError, match="not within"):
        transport(control_port=port)


def test_a_killed_peer_is_told():
    victim = transport()
    watched = WatchedTransport(victim)
    with process(victim) as child:
        watched.until(lambda: LinkUp(0) in watched.heard[victim], "LinkUp")
        child.kill()
        watched.until(lambda: isinstance(watched.heard[victim][-1], LinkDown), "LinkDown")


def test_a_stopped_peer_is_told_and_its_return_too():
    victim = transport()
    watched = WatchedTransport(victim)
    with process(victim) as child:
        watched.until(lambda: LinkUp(0) in watched.heard[victim], "LinkUp")
        os.kill(child.pid, signal.SIGSTOP)
        watched.until(lambda: isinstance(watched.heard[victim][-1], LinkDown), "LinkDown")
        # libzmq tells of the end before it takes the connection away: until then one more may go.
        watched.until(lambda: victim.send(0, Ping(1, 0, ())) is False, "a message that does not go")
        os.kill(child.pid, signal.SIGCONT)
        watched.until(lambda: watched.heard[victim][-1] == LinkUp(0), "LinkUp again")
    assert [type(arrival) for arrival in watched.heard[victim]] == [LinkUp, LinkDown, LinkUp]


def test_who_is_too_busy_to_read_payloads_is_not_cut_off():
    """Its queue is full, so it does not even see heartbeats on the bulk lane."""
    first, second, watched = pair(16 * MIB)
    for number in range(2):
        assert first.send(1, update(number), floats(16 * MIB))
    end = time.monotonic() + 1.0  # heartbeats of the control lane time out in a third of that
    while time.monotonic() < end:
        watched.heard[first] += first.poll(0.05)
    assert LinkDown(1, "bulk connection closed") not in watched.heard[first]
    watched.until(lambda: len(watched.received(second)) == 2, "both payloads")
    assert second.traffic.dropped == {}


class Cable:
    """Between two hosts. Pulled, nothing passes on the connections of before, whatever comes."""

    def __init__(self) -> None:
        self._pulled = 0

    def pull(self) -> None:
        self._pulled += 1

    def towards(self, address: str) -> str:
        listener = socket.create_server(("127.0.0.1", 0))

        def pump(source: socket.socket, target: socket.socket, pulled: int) -> None:
            with suppress(OSError):
                while data := source.recv(65536):
                    if pulled == self._pulled:
                        target.sendall(data)
            for end in (source, target):
                with suppress(OSError):  # it has ended before
                    end.shutdown(socket.SHUT_RDWR)

        def serve() -> None:
            while True:
                near, _ = listener.accept()
                far = raw(address)
                for ends in ((near, far), (far, near)):
                    Thread(target=pump, args=(*ends, self._pulled), daemon=True).start()

        Thread(target=serve, daemon=True).start()
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("far", [True, False])
def test_after_a_cut_between_hosts_payloads_do_not_wait_for_the_old_connection(
    far: bool, monkeypatch: pytest.MonkeyPatch
):
    """N24. On one host nothing is lost, and what is on its way to one that did not read comes."""
    monkeypatch.setattr(links, "is_far", lambda address: far)
    monkeypatch.setattr(links, "CUT_S", 0.0)
    monkeypatch.setattr(sockets, "_HEARTBEAT_FAR", sockets._HEARTBEAT)  # so as not to wait long
    first, second = transport(local=0, limit=8), transport(local=1, limit=8)
    watched, cable = WatchedTransport(first, second), Cable()
    first.connect(1, cable.towards(second.control), cable.towards(second.bulk))
    watched.until(lambda: watched.heard[first] == [LinkUp(1)], "a link")
    connection = first._table.links[1].bulk
    cable.pull()
    watched.until(lambda: isinstance(watched.heard[first][-1], LinkDown), "the end of the link")
    watched.until(lambda: watched.heard[first][-1] == LinkUp(1), "a link again")
    assert first.send(1, update(7), floats(8))
    if far:
        watched.until(lambda: len(watched.received(second)) == 1, "the payload")
    assert (first._table.links[1].bulk is connection) is not far


def test_what_a_dead_peer_sent_may_come_after_its_link_closed():
    """docs/design_notes.md N16: whoever reads ``LinkDown`` must not think that
    nothing more will come."""
    victim = transport(limit=MIB)
    watched = WatchedTransport(victim)
    speak = (
        "wait_line(); [peer.send(1, update(n), floats(1 << 20)) for n in range(3)]; "
        "print('said', flush=True); peer.close(30); sys.exit()"
    )
    with process(victim, speak) as child:
        watched.until(lambda: LinkUp(0) in watched.heard[victim], "LinkUp")
        child.stdin.write("speak\n")
        assert watched.line_of(child) == "said\n"
        watched.until(lambda: len(watched.received(victim)) == 3, "what it said before it left")
        watched.until(
            lambda: any(isinstance(arrival, LinkDown) for arrival in watched.heard[victim]),
            "LinkDown",
        )
    assert [arrival.message for arrival in watched.received(victim)] == [
        update(0),
        update(1),
        update(2),
    ]


def test_a_sender_that_dies_in_the_middle_of_a_payload_frees_its_memory(monkeypatch):
    monkeypatch.setattr(assembly, "ORPHANED_S", 0.01)
    first, second, watched = pair(64 * MIB)
    watched.link(second, 0, first)
    assert first.send(1, update(), floats(64 * MIB))
    while len(second._reception.assembly) == 0:
        watched.heard[second] += second.poll(0.01)
    first.close()
    rest = WatchedTransport(second)
    rest.until(lambda: len(second._reception.assembly) == 0, "the memory to be freed")
    assert second.traffic.dropped["gap"] == 1
    assert rest.received(second) == []


def test_who_comes_back_late_finds_the_rest_of_a_payload(monkeypatch):
    """It did not grow, but it is we who did not read."""
    monkeypatch.setattr(assembly, "STALLED_S", 0.05)
    first, second, watched = pair(16 * MIB)
    assert first.send(1, update(), floats(16 * MIB))
    while len(second._reception.assembly) == 0:
        first.poll(0.0)
        watched.heard[second] += second.poll(0.0)
    deadline = min(incoming.deadline for _, incoming in second._reception.assembly._open.values())
    while time.monotonic() < deadline + 0.2:  # also past the next look at all sockets
        first.poll(0.01)
    watched.until(lambda: len(watched.received(second)) == 1, "the payload")
    assert second.traffic.dropped == {}


def test_a_small_payload_is_copied_and_free_at_once():
    first, second, watched = pair(64 * 1024)
    payload = floats(64 * 1024)
    assert first.send(1, update(0), payload)
    assert not first.in_flight(payload.data)
    payload.data[:] = -1.0
    watched.until(lambda: len(watched.received(second)) == 1, "the update")
    received = watched.received(second)[0].payload
    assert received.data.tobytes() == floats(64 * 1024).data.tobytes()


def test_to_whom_nobody_listens_nothing_is_queued():
    first, second, _ = pair(8)
    address = second.control, second.bulk
    second.close()
    first.connect(3, *address)
    rest = WatchedTransport(first)
    rest.until(
        lambda: any(isinstance(arrival, LinkDown) for arrival in rest.heard[first]), "LinkDown"
    )
    assert not first.send(3, Ping(1, 3, ()))
    assert not first.send(3, update(), floats(8))
    assert first.traffic.dropped == {"no_link": 2}
    first.close(0.5)


def test_close_gives_every_descriptor_back():
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    warm = transport()
    warm.close()
    before = descriptors()
    for _ in range(5):
        first, second, watched = pair(8)
        watched.link(second, 0, first)
        first.connect(9, "tcp://127.0.0.1:1", "tcp://127.0.0.1:1")
        first.close()
        second.close()
    assert descriptors() <= before


def test_the_end_of_a_payload_lane_does_not_overtake_the_farewell(monkeypatch):
    """Peers on one host see the end of a unix socket at once; ZeroMQ sends what lingers later."""
    first, second = transport(local=0, same_host=True), transport(local=1, same_host=True)
    watched = WatchedTransport(first, second)
    watched.link(first, 1, second)
    lane, ends, term = first._table.links[1].bulk, [], zmq.Context.term
    assert isinstance(lane, UnixLane)
    monkeypatch.setattr(type(lane), "close", lambda self, linger_ms=0: ends.append("payloads"))
    monkeypatch.setattr(zmq.Context, "term", lambda self: (term(self), ends.append("control")))
    first.close(1.0)
    assert ends == ["control", "payloads"]


def test_traffic_starts_at_nothing():
    one = transport()
    assert one.traffic == Traffic()


def test_a_message_to_many_is_encoded_once_but_not_across_lives():
    lives = [3]
    sender = ZeroMQTransport(b"run", 0, lambda: lives[0], lambda sender, message: -1)
    message = update()
    first = sender._envelope_of(message)
    assert sender._envelope_of(message) is first
    assert decode(first) == Envelope(b"run", 0, 3, message)
    lives[0] = 4
    assert decode(sender._envelope_of(message)).incarnation == 4
    assert decode(sender._envelope_of(update(1))).message == update(1)


@pytest.mark.parametrize(
    ("turn_s", "yields"), [(waiting.YIELDED_S / 2, [3, 3]), (2 * waiting.YIELDED_S, [1, 0])]
)
def test_a_wait_is_slept_where_the_processor_is_somebody_elses(monkeypatch, turn_s, yields):
    now, yielded, awake_s = [100.0], [], 1.25 * waiting.YIELDED_S

    def somebody_elses_turn() -> None:
        yielded.append(now[0])
        now[0] += turn_s

    def yields_of_a_wait(one: ZeroMQTransport) -> int:
        yielded.clear()
        one._waiter.wait(0.002, awake_s)
        return len(yielded)

    one = transport()
    try:
        while one._waiter.wait(0.0, 0.0):
            one.poll(0.0)  # what there is to hear of sockets that are new
        with monkeypatch.context() as patched:
            patched.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now[0]))
            patched.setattr(os, "sched_yield", somebody_elses_turn)
            found = [yields_of_a_wait(one), yields_of_a_wait(one)]
            now[0] += waiting.CROWDED_S + 0.001
            again = yields_of_a_wait(one)
    finally:
        one.close()
    assert found == yields
    assert again == yields[0], "it is tried again"

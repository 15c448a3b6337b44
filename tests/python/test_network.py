"""The network of benchmarks: as far, as narrow and as lossy as it is told to be."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import network
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

MEASURE = """
import socket, threading, time

server = socket.create_server(("127.0.0.1", 0))

def serve():
    connection, _ = server.accept()
    connection.sendall(bytes(1 << 20))
    connection.close()

threading.Thread(target=serve, daemon=True).start()
start = time.monotonic()
connection = socket.create_connection(server.getsockname())
connected = time.monotonic()
while connection.recv(1 << 20):
    pass
print(connected - start, time.monotonic() - connected)
"""


def link(**settings: float) -> network.Link:
    given = {"delay_seconds": 0.01, "bytes_per_second": 1000.0, "loss": 0.0, **settings}
    return network.Link(generator=random.Random(1), **given)


def test_packets_come_out_late_one_after_another():
    one_way = link()
    one_way.send(b"x" * 50, 0.0)
    one_way.send(b"y" * 50, 0.0)
    assert one_way.received(0.059) == []
    assert one_way.next_time() == pytest.approx(0.06)
    assert one_way.received(0.0601) == [b"x" * 50]
    assert one_way.received(1.0) == [b"y" * 50]
    assert one_way.next_time() == float("inf")


def test_a_link_that_is_full_drops_what_comes():
    one_way = link(delay_seconds=0.0)
    for _ in range(100):
        one_way.send(b"x" * 50, 0.0)
    # A tenth of a second is 100 bytes.
    assert len(one_way.received(100.0)) == 3


def test_as_many_packets_are_lost_as_was_said():
    one_way = link(bytes_per_second=1e12, loss=0.1)
    for _ in range(10_000):
        one_way.send(b"x", 0.0)
    assert 8800 <= len(one_way.received(1.0)) <= 9200


def test_the_two_directions_of_a_connection_are_two():
    def packet(source: int, target: int) -> bytes:
        return bytes([0x45]) + bytes(19) + struct.pack("!HH", source, target)

    assert network.is_back(packet(1, 2)) != network.is_back(packet(2, 1))
    assert network.is_back(packet(1, 2)) == network.is_back(packet(1, 3))
    assert not network.is_back(bytes([0x45]) + bytes(19))


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare"))) or not Path(network.TUN).exists(),
    reason="a network of one's own takes root, iproute2 and TUN",
)
def test_a_command_is_as_far_away_as_was_said():
    command = [sys.executable, SCRIPTS / "network.py", "run", "--round-trip", "60", "--rate", "50", "--"]
    done = subprocess.run([*command, sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=60)
    if "Operation not permitted" in done.stderr:
        pytest.skip("this root may not make networks")
    assert done.returncode == 0, done.stderr
    connecting, receiving = map(float, done.stdout.split())
    assert connecting >= 0.06
    # A megabyte takes 0.17 s of such a link.
    assert receiving >= 0.17
    assert "60 ms, 50 Mbit/s" in done.stderr


def test_who_may_not_is_told(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["network.py", "run", "--", "true"])
    assert network.main() == 1
    assert "takes root" in capsys.readouterr().err

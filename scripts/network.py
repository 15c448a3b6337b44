"""Runs a command in its own network namespace, whose loopback interface has a given latency, bandwidth and loss.

Measurements on one machine involve no real network: answers take no time, and nothing is lost. Here everything that the
command and its children send to 127.0.0.1 is delayed, queues for a link and may be lost. So TCP behaves as on a real
network: it starts slowly, retransmits, and fills the link sooner with several connections than with one.

    network.py run --round-trip 30 --rate 1000 --loss 0.1 -- make bench BENCH_FLAGS="--only scan"

The namespace has only its loopback interface, so nothing outside can be reached. If the kernel has netem, netem does
the work. Otherwise packets to 127.0.0.1 go through a TUN device and this program delays them. It handles some 30,000 a
second, so the default `--mtu` is larger than that of a real network. Needs root, `ip`, `tc`, `unshare` and only the
standard library.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

TUN = "/dev/net/tun"
DEVICE = "far0"
TABLE = "100"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
QUEUE_SECONDS = 0.1
"""Packets that would wait longer for the link are dropped, as by a router."""
NUM_PROBES = 5


class NetworkError(Exception):
    """The network cannot be set up."""


@dataclass(kw_only=True)
class Link:
    """One direction of a link: packets come out later, in order, or not at all."""

    delay_seconds: float
    bytes_per_second: float
    loss: float
    generator: random.Random
    _free: float = 0.0
    _under_way: deque[tuple[float, bytes]] = field(default_factory=deque)

    def send(self, packet: bytes, now: float) -> None:
        """Queues a packet, or drops it."""
        self._free = max(self._free, now)
        if self._free - now > QUEUE_SECONDS or self.generator.random() < self.loss:
            return
        self._free += len(packet) / self.bytes_per_second
        self._under_way.append((self._free + self.delay_seconds, packet))

    def next_time(self) -> float:
        """Returns when the next packet comes out."""
        return self._under_way[0][0] if self._under_way else float("inf")

    def received(self, now: float) -> list[bytes]:
        """Returns the packets that have come out."""
        packets = []
        while self._under_way and self._under_way[0][0] <= now:
            packets.append(self._under_way.popleft()[1])
        return packets


def hold(device: int, links: tuple[Link, Link]) -> None:
    """Passes packets through the links, for ever."""
    while True:
        now = time.monotonic()
        for link in links:
            for packet in link.received(now):
                os.write(device, packet)
        wait = max(min(link.next_time() for link in links) - time.monotonic(), 0.0)
        if not select.select([device], [], [], min(wait, 1.0))[0]:
            continue
        now = time.monotonic()
        try:
            for _ in range(64):
                packet = os.read(device, 1 << 16)
                links[is_back(packet)].send(packet, now)
        except BlockingIOError:
            pass


def is_back(packet: bytes) -> int:
    """Returns the direction of an IPv4 packet, by its ports, because both ends have the same address."""
    header_bytes = (packet[0] & 15) * 4
    ports = struct.unpack_from("!HH", packet, header_bytes) if len(packet) >= header_bytes + 4 else (0, 0)
    return int(ports[0] < ports[1])


def open_device() -> int:
    """Creates the TUN device."""
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    return device


def lead_through(mtu: int) -> None:
    """Routes packets to 127.0.0.1 out through the device, and accepts them from it."""
    settings = Path("/proc/sys/net/ipv4/conf")
    for place in ("all", DEVICE):
        for name, value in (("rp_filter", "0"), ("accept_local", "1"), ("route_localnet", "1")):
            (settings / place / name).write_text(value)
    call("ip", "link", "set", DEVICE, "mtu", str(mtu), "txqueuelen", "10000", "up")
    # Packets sent by this machine match `iif lo` and go to the device; those coming back from it do not: delivered.
    call("ip", "route", "add", "127.0.0.1/32", "dev", DEVICE, "src", "127.0.0.1", "table", TABLE)
    call("ip", "rule", "add", "pref", "10", "iif", "lo", "to", "127.0.0.1", "lookup", TABLE)
    call("ip", "rule", "add", "pref", "20", "lookup", "local")
    call("ip", "rule", "del", "pref", "0")


def call(*command: str) -> None:
    """Runs a command; raises if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"`{' '.join(command)}`: {done.stderr.strip()}")


def has_netem(arguments: argparse.Namespace) -> bool:
    """Applies netem to the loopback interface; returns whether the kernel has it."""
    options = ["delay", f"{arguments.round_trip / 2}ms", "rate", f"{arguments.rate}mbit", "limit", "100000"]
    options += ["loss", f"{arguments.loss}%"] if arguments.loss else []
    done = subprocess.run(
        ["tc", "qdisc", "add", "dev", "lo", "root", "netem", *options], capture_output=True, check=False
    )
    return done.returncode == 0


def start_holding(arguments: argparse.Namespace) -> int:
    """Starts the process that delays packets; returns its id."""
    device = open_device()
    lead_through(arguments.mtu)
    process = os.fork()
    if process:
        os.close(device)
        return process
    generator = random.Random(arguments.seed)  # noqa: S311 - nothing is secret
    one_way = Link(
        delay_seconds=arguments.round_trip / 2000,
        bytes_per_second=arguments.rate * 1e6 / 8,
        loss=arguments.loss / 100,
        generator=generator,
    )
    other_way = Link(
        delay_seconds=one_way.delay_seconds,
        bytes_per_second=one_way.bytes_per_second,
        loss=one_way.loss,
        generator=generator,
    )
    try:
        hold(device, (one_way, other_way))
    finally:
        os._exit(0)


def seconds_to_connect() -> float:
    """Returns how long it takes to connect, the best of a few attempts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = []
        for _ in range(NUM_PROBES):
            start = time.monotonic()
            with socket.create_connection(server.getsockname(), timeout=10):
                found.append(time.monotonic() - start)
            server.accept()[0].close()
    return min(found)


def run_inside(arguments: argparse.Namespace) -> int:
    """Sets up the network in the namespace of this process, and runs the command in it."""
    call("ip", "link", "set", "lo", "up")
    means, holder = "netem", 0
    if not has_netem(arguments):
        means, holder = f"packets of up to {arguments.mtu} bytes, held by a program", start_holding(arguments)
    try:
        wanted = f"{arguments.round_trip:g} ms, {arguments.rate:g} Mbit/s, {arguments.loss:g} % lost"
        took = f"a connection takes {seconds_to_connect() * 1000:.1f} ms"
        congestion = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
        print(f"network: {wanted}, {congestion}, by {means}; {took}", file=sys.stderr, flush=True)
        return subprocess.run(arguments.command, check=False).returncode
    finally:
        if holder:
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)


def run(arguments: list[str]) -> int:
    """Runs this program again in its own namespace."""
    if os.geteuid() != 0:
        raise NetworkError("a network of one's own takes root: run it by `sudo`")
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        raise NetworkError(f"no `{'`, `'.join(missing)}`: `apt-get install iproute2 util-linux`")
    return subprocess.run(["unshare", "--net", sys.executable, __file__, "inside", *arguments], check=False).returncode


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("run", "inside"):
        # `run` calls this program again with `inside`.
        command = commands.add_parser(name)
        command.add_argument("--round-trip", type=float, default=30.0, help="round-trip time in milliseconds")
        command.add_argument("--rate", type=float, default=1000.0, help="megabits per second, each way")
        command.add_argument("--loss", type=float, default=0.0, help="percent of packets, each way")
        command.add_argument("--mtu", type=int, default=9000, help="largest packet in bytes, without netem")
        command.add_argument("--seed", type=int, default=0, help="seed of the packet loss, without netem")
        command.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
    if not arguments.command:
        parser.error("expected a command after `--`")
    try:
        return run_inside(arguments) if arguments.what == "inside" else run(sys.argv[2:])
    except (NetworkError, OSError) as error:
        print(f"network: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs a command in a network of its own, whose loopback interface is as far, as narrow and as lossy as one says.

What is measured on one machine has no network: an answer takes no time, and nothing is lost. Here all that the command
and its children send to 127.0.0.1 is late, queues for a link, and may be lost, so TCP does what it does elsewhere: it
starts slowly, repeats, and fills the link with several connections sooner than with one.

    network.py run --round-trip 30 --rate 1000 --loss 0.1 -- make bench BENCH_FLAGS="--only scan"

The namespace has nothing but its loopback interface, so the outside cannot be reached. Where the kernel has netem,
netem does it. Where it has not, packets to 127.0.0.1 are sent through a TUN device, and this program holds them: some
30,000 a second, so `--mtu` is larger than that of a real network. Needs root, `ip`, `tc` and `unshare`. Only the
standard library is used.
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
"""What waits for the link for longer is dropped, as by a router."""
NUM_PROBES = 5


class NetworkError(Exception):
    """There is no such network here."""


@dataclass(kw_only=True)
class Link:
    """One direction of a link: what is sent comes out later, in its order, or not at all."""

    delay_seconds: float
    bytes_per_second: float
    loss: float
    generator: random.Random
    _free: float = 0.0
    _under_way: deque[tuple[float, bytes]] = field(default_factory=deque)

    def send(self, packet: bytes, now: float) -> None:
        """Takes a packet."""
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
    """Passes packets on through the links, for ever."""
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
    """Returns which of the two directions of its connection a packet of IPv4 goes: both ends have one address."""
    header_bytes = (packet[0] & 15) * 4
    ports = struct.unpack_from("!HH", packet, header_bytes) if len(packet) >= header_bytes + 4 else (0, 0)
    return int(ports[0] < ports[1])


def open_device() -> int:
    """Makes the TUN device."""
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    return device


def lead_through(mtu: int) -> None:
    """Has packets to 127.0.0.1 leave by the device, and lets them come back by it."""
    settings = Path("/proc/sys/net/ipv4/conf")
    for place in ("all", DEVICE):
        for name, value in (("rp_filter", "0"), ("accept_local", "1"), ("route_localnet", "1")):
            (settings / place / name).write_text(value)
    call("ip", "link", "set", DEVICE, "mtu", str(mtu), "txqueuelen", "10000", "up")
    # What this machine sends has no other interface it came from; what comes back has, and is delivered.
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
    """Has netem hold what passes the loopback interface, if there is netem."""
    options = ["delay", f"{arguments.round_trip / 2}ms", "rate", f"{arguments.rate}mbit", "limit", "100000"]
    options += ["loss", f"{arguments.loss}%"] if arguments.loss else []
    done = subprocess.run(
        ["tc", "qdisc", "add", "dev", "lo", "root", "netem", *options], capture_output=True, check=False
    )
    return done.returncode == 0


def start_holding(arguments: argparse.Namespace) -> int:
    """Starts the process that holds packets; returns its number."""
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
    """Returns how long a connection takes, at best of a few."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = []
        for _ in range(NUM_PROBES):
            start = time.monotonic()
            with socket.create_connection(server.getsockname(), timeout=10):
                found.append(time.monotonic() - start)
            server.accept()[0].close()
    return min(found)


def run_inside(arguments: argparse.Namespace) -> int:
    """Makes the network in the namespace that this process is in, and runs the command in it."""
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
    """Runs this program in a namespace of its own."""
    if os.geteuid() != 0:
        raise NetworkError("a network of one's own takes root: run it by `sudo`")
    missing = [name for name in ("ip", "tc", "unshare") if shutil.which(name) is None]
    if missing:
        raise NetworkError(f"no `{'`, `'.join(missing)}`: `apt-get install iproute2 util-linux`")
    return subprocess.run(["unshare", "--net", sys.executable, __file__, "inside", *arguments], check=False).returncode


def main() -> int:
    """Does what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("run", "inside"):
        # The second is how the first calls itself.
        command = commands.add_parser(name)
        command.add_argument("--round-trip", type=float, default=30.0, help="milliseconds there and back")
        command.add_argument("--rate", type=float, default=1000.0, help="megabits a second, each way")
        command.add_argument("--loss", type=float, default=0.0, help="percent of packets, each way")
        command.add_argument("--mtu", type=int, default=9000, help="bytes of a packet, without netem")
        command.add_argument("--seed", type=int, default=0, help="of what is lost, without netem")
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

"""
A network of namespaces that one process carries: `python -m tests.faults.switch NAME...`, as root.

Each name gets a network namespace with one interface (TUN) that has the address 10.213.0.N, the
first name N = 1; the process's own namespace gets 10.213.0.254. Every packet between two of them
passes here and may be dropped: pairs that are cut, a share of all. So neither iptables nor a
kernel with netem is needed, and nothing outside of the process and its children is touched.

Orders come on stdin, one JSON list a line: ["cut", [[SOURCE, TARGET], ...]] replaces all cuts,
["exchange", [NAME, NAME]] gives two nodes each other's address, ["lose", SHARE], ["forget", NAME]
loses what a dead node's kernel has still to send, ["watch", true | false]. The answer to each is
one JSON line: for "watch" false the tags seen since "watch" true, as [SOURCE, TARGET, TAG, COUNT].
The first line, on its own, says where the namespaces are: {NAME: PATH}.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import select
import socket
import struct
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

NETWORK = "10.213.0"
OUTSIDE = "outside"
MTU = 1500
INTERFACE = b"faults0"
TAG = re.compile(rb"<([^ <>]+ \d+) ")

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x1001
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFMTU, _SIOCSIFFLAGS = 0x8916, 0x891C, 0x8922, 0x8914
_IFF_UP_RUNNING = 0x41
_TCP = 6
_FIN, _SYN = 1, 2


def address(place: int) -> str:
    """The address of the name at this place; -1 for outside."""
    return f"{NETWORK}.{254 if place < 0 else place + 1}"


def open_interface(place: int) -> int:
    """In the present namespace: an interface with this address, up. The file that is its cable."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    name = INTERFACE
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name, _IFF_TUN_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", name, MTU))
        for each in (name, b"lo"):
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", each, _IFF_UP_RUNNING))
    set_address(address(place))
    return fd


def set_address(wanted: str) -> None:
    """Of the interface in the present namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, text in ((_SIOCSIFADDR, wanted), (_SIOCSIFNETMASK, "255.255.255.0")):
            parts = INTERFACE, socket.AF_INET, socket.inet_aton(text)
            fcntl.ioctl(control, request, struct.pack("16sH2x4s16x", *parts))


class Switch:
    """Carries packets from cable to cable; `move` gives the node of a name another address."""

    def __init__(
        self, cables: dict[str, int], rng: Random, move: Callable[[str, str], None]
    ) -> None:
        places = {name: place for place, name in enumerate(cables) if name != OUTSIDE} | {
            OUTSIDE: -1
        }
        self._names = {socket.inet_aton(address(place)): name for name, place in places.items()}
        self._cables = {raw: cables[name] for raw, name in self._names.items()}
        self._cut: set[tuple[str, str]] = set()
        self._share = 0.0
        self._rng = rng
        self._move = move
        self._watched: Counter[tuple[str, str, str]] | None = None
        self._ends: dict[bytes, int] = {}  # TCP flow: the highest sequence number passed
        self._forgotten: set[bytes] = set()  # addresses of nodes with flows that are forgotten
        self._begun: set[bytes] = set()  # flows that began since

    def order(self, verb: str, value: Any) -> Any:
        """Carry it out; what is to be answered."""
        if verb == "cut":
            self._cut = {(source, target) for source, target in value}
        elif verb == "exchange":
            self._exchange(*value)
        elif verb == "lose":
            self._share = value
        elif verb == "forget":
            gone = {raw for raw, name in self._names.items() if name == value}
            self._begun = {flow for flow in self._begun if flow[:4] not in gone}
            self._forgotten |= gone
        elif verb == "watch":
            seen, self._watched = self._watched, Counter() if value else None
            return [[*key, count] for key, count in (seen or {}).items()]
        return None

    def carry(self, fd: int) -> None:
        """All packets that wait on this cable."""
        while True:
            try:
                packet = os.read(fd, 65_536)
            except BlockingIOError:
                return
            source, target = packet[12:16], packet[16:20]
            cable = self._cables.get(target)
            if packet[0] >> 4 != 4 or cable is None or self._is_lost(source, target):
                continue
            if self._forgotten and self._is_late(packet):
                continue
            if self._watched is not None:
                self._watch(packet)
            try:
                os.write(cable, packet)
            except OSError:
                pass  # its queue is full, or it is going down: lost, as on any network

    def _exchange(self, one: str, other: str) -> None:
        raws = {name: raw for raw, name in self._names.items()}
        for name, raw in ((one, raws[other]), (other, raws[one])):
            self._move(name, socket.inet_ntoa(raw))
            self._names[raw] = name
        first, second = raws[one], raws[other]
        self._cables[first], self._cables[second] = self._cables[second], self._cables[first]

    def _is_lost(self, source: bytes, target: bytes) -> bool:
        pair = (self._names.get(source, ""), self._names[target])
        return pair in self._cut or (self._share > 0 and self._rng.random() < self._share)

    def _is_late(self, packet: bytes) -> bool:
        """True for what a connection of a node that was forgotten had still to send."""
        if packet[9] != _TCP:
            return False
        start = (packet[0] & 15) * 4
        flags = packet[start + 13]
        flow = packet[12:20] + packet[start : start + 4]
        if flags & _SYN:
            # The flow back has the same hosts and ports the other way round.
            back = packet[16:20] + packet[12:16] + packet[start + 2 : start + 4]
            self._begun |= {flow, back + packet[start : start + 2]}
        if flow in self._begun or packet[12:16] not in self._forgotten:
            return False
        # Answers without bytes pass: the other end has to see that its connection is gone.
        return bool(flags & _FIN) or len(packet) > start + (packet[start + 12] >> 4) * 4

    def _watch(self, packet: bytes) -> None:
        """Count tags in what TCP has not sent before."""
        start = (packet[0] & 15) * 4
        if packet[9] != _TCP or self._watched is None:
            return
        sequence = int.from_bytes(packet[start + 4 : start + 8], "big")
        payload = packet[start + (packet[start + 12] >> 4) * 4 :]
        flow = packet[12:20] + packet[start : start + 4]
        end = self._ends.get(flow, sequence)
        if payload and (sequence - end) % (1 << 32) < 1 << 31:
            self._ends[flow] = sequence + len(payload)
            source, target = self._names.get(packet[12:16], ""), self._names[packet[16:20]]
            for tag in TAG.findall(payload):
                self._watched[source, target, tag.decode("ascii", "replace")] += 1


def main(names: list[str]) -> None:
    """Until stdin ends."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(call: Any, *arguments: int) -> None:
        if call(*arguments):
            raise OSError(ctypes.get_errno(), "no network namespace")

    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    cables, spaces, doors = {}, {}, {}
    for place, name in enumerate(names):
        enter(libc.unshare, _CLONE_NEWNET)
        cables[name] = open_interface(place)
        space = os.open("/proc/self/ns/net", os.O_RDONLY)
        spaces[name], doors[name] = f"/proc/{os.getpid()}/fd/{space}", space
    enter(libc.setns, home, _CLONE_NEWNET)
    cables[OUTSIDE] = open_interface(-1)

    def move(name: str, to: str) -> None:
        enter(libc.setns, doors[name], _CLONE_NEWNET)
        set_address(to)
        enter(libc.setns, home, _CLONE_NEWNET)

    switch = Switch(cables, Random(" ".join(names)), move)
    print(json.dumps(spaces), flush=True)
    serve(switch, list(cables.values()))


def serve(switch: Switch, cables: list[int]) -> None:
    """Packets, and orders from stdin."""
    orders = b""
    poll = select.epoll()
    for fd in (0, *cables):
        poll.register(fd, select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd:
                switch.carry(fd)
                continue
            data = os.read(0, 65_536)
            if not data:
                return
            *lines, orders = (orders + data).split(b"\n")
            for line in lines:
                print(json.dumps(switch.order(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

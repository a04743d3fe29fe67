"""
The tree of the data folders of MQTT 5.0, and what its clients did before all nodes were killed.

As in `story`, the nodes' addresses are in the folders. What the durable sessions have:

- `READER` subscribed at edge with an identifier, and left. Messages with properties wait for it,
  in two zones, at QoS 1 and 2, and each expires in ten years.
- `MEMBERS` share the group `JOBS` at edge and at root. Both left, and the jobs came after that. Of
  two that came before, the first member took one without an answer.
- `SLEEPER` vanished with a will that is due in ten years, `MOURNED` with one that is due soon.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.support import wire5
from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient5 import RawClient5

HOST = "127.93.4.2"
NAMES = ("root", "a", "edge")
ZONES = {"root": "", "a": "a"}

YEARS = 10 * 365 * 86_400
FOREVER = 0xFFFFFFFF

READER, MEMBERS, SLEEPER, MOURNED = "reader", ("member-edge", "member-root"), "sleeper", "mourned"
IDENTIFIER = 7
FILTERS = ("data/#", "a/data/#")
TOPICS = ("data/x", "a/data/x")
EACH = 5
"""Messages of each topic of the reader at QoS 1, and at QoS 2; their payloads 0 to 4."""

JOBS = "$share/crew/a/jobs"
COUNT = 20

SLEEPERS_WILL, MOURNED_WILL = "a/sleeper", "a/mourned"
SOON = 5
"""Seconds after which the will of `MOURNED` is due; the tree is killed before."""

PROPERTIES: wire5.Properties = [
    (wire5.PAYLOAD_FORMAT, 1),
    (wire5.CONTENT_TYPE, "text/plain"),
    (wire5.RESPONSE_TOPIC, "answers/here"),
    (wire5.CORRELATION_DATA, b"\x00\x01"),
    (wire5.USER_PROPERTY, ("room", "garage")),
    (wire5.USER_PROPERTY, ("room", "attic")),
]
"""Of each message, beside its expiry."""

RETAINED = {"kept": b"kept of root", "a/kept": b"kept of a"}


def nodes(directory: Path) -> dict[str, NodeProcess]:
    """The three nodes, not started; their data folders are in `directory`."""
    made = {}
    for number, name in enumerate(NAMES):
        document = topology(
            name,
            zone=ZONES.get(name),
            mqtt=[f"tcp:0:interface={HOST}"],
            grpc=f"{HOST}:{7001 + number}",
            session_limits={"age": "3650d"},
            retention={"age": "3650d"},
            **({"parent": f"{HOST}:7001"} if name != "root" else {}),
        )
        made[name] = NodeProcess(directory, document)
    return made


def write(directory: Path) -> None:
    """Play the story in `directory`; all nodes are killed when this returns."""
    tree = nodes(directory)
    with ExitStack() as stack:
        for node in tree.values():
            stack.callback(node.close)
            node.start()
        for name in NAMES[1:]:
            tree[name].wait_event("join.granted", 30.0)
        _play(tree)
        for node in tree.values():
            node.kill()


def _play(tree: dict[str, NodeProcess]) -> None:
    expiring = [*PROPERTIES, (wire5.MESSAGE_EXPIRY, YEARS)]
    with RawClient5(tree["edge"].mqtt) as reader:
        reader.connect(READER, clean=False, expiry=FOREVER)
        identifier: wire5.Properties = [(wire5.SUBSCRIPTION_ID, IDENTIFIER)]
        reader.subscribe(*((name, 2) for name in FILTERS), properties=identifier)
        reader.disconnect()
    members = [RawClient5(tree[node].mqtt) for node in ("edge", "root")]
    for member, name in zip(members, MEMBERS, strict=True):
        member.connect(name, clean=False, expiry=FOREVER)
        member.subscribe((JOBS, 1))
    publisher = RawClient5(tree["root"].mqtt)
    publisher.connect("publisher")
    publisher.publish("a/jobs", b"0", qos=1, properties=expiring)
    publisher.publish("a/jobs", b"1", qos=1, properties=expiring)
    _take_unanswered(members)
    for member in members:
        member.close()
    for topic, payload in RETAINED.items():
        publisher.publish(topic, payload, qos=1, retain=True, properties=expiring)
    for number in range(EACH):
        for topic in TOPICS:
            for qos in (1, 2):
                publisher.publish(topic, str(number).encode(), qos=qos, properties=expiring)
    for number in range(2, COUNT):
        publisher.publish("a/jobs", str(number).encode(), qos=1, properties=expiring)
    for name, topic, delay in (
        (SLEEPER, SLEEPERS_WILL, YEARS),
        (MOURNED, MOURNED_WILL, SOON),
    ):
        will = wire5.Will(
            topic=topic,
            payload=name.encode(),
            qos=1,
            retain=True,
            properties=[*PROPERTIES, (wire5.WILL_DELAY, delay)],
        )
        client = RawClient5(tree["edge"].mqtt)
        client.connect(name, clean=False, expiry=FOREVER, will=will)
        client.close()


def _take_unanswered(members: list[RawClient5]) -> None:
    """Each member gets a job, one of them both, and none is answered."""
    got: list[bytes] = []
    while len(got) < 2:
        for member in members:
            if member.has_input(0.1):
                got.append(member.expect_publish("a/jobs").payload)
    assert sorted(got) == [b"0", b"1"]

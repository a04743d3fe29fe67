"""
Requests between nodes about client ids, and their replies, as plain values.

`view` is the digest of the members at the asker's site. A node that sees other members answers
`OtherView`. Otherwise a node would count answers of nodes that assign other keepers to an entry.
"""

from __future__ import annotations

from typing import Final

import attrs

from txbroker.directory.directory_ports import PendingPublishes
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.members import Member


@attrs.frozen(kw_only=True)
class OtherView:
    """
    The asked node knows these members of all sites; the asker compares, shares and asks again.
    """

    view: bytes
    members: tuple[Member, ...]


@attrs.frozen(kw_only=True)
class ShareMembers:
    """
    Members that the asked node may not know; the answer is `OtherView` with all members it knows.
    """

    members: tuple[Member, ...]


@attrs.frozen(kw_only=True)
class Ping:
    """A probe whether a node is reachable; the answer is `Pong`."""


@attrs.frozen(kw_only=True)
class Pong:
    """The answer to `Ping`: the node is reachable."""


# -- the index


@attrs.frozen(kw_only=True)
class Lookup:
    """Ask a keeper for the holders of these client ids; the answer is `Answers`."""

    view: bytes
    client_ids: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Answer:
    """
    The entry (without its will), or None and the generation of the last known session.

    `settled`: the answering node would know of a session, as far as one node can.
    """

    settled: bool
    entry: DirectoryEntry | None = None
    generation: int = 0


@attrs.frozen(kw_only=True)
class Answers:
    """The `Answer` of each id of a `Lookup`, in the same order."""

    answers: tuple[Answer, ...]


@attrs.frozen(kw_only=True)
class Claim:
    """The asker wants to begin a kept session; a keeper refuses if it knows another session."""

    view: bytes
    entry: DirectoryEntry


@attrs.frozen(kw_only=True)
class Claimed:
    """`conflict` None: the claim stands at the keeper, and was durable before this answer."""

    conflict: DirectoryEntry | None = None


@attrs.frozen(kw_only=True)
class Ended:
    """The asker's sessions up to that generation have ended; a later session has not."""

    client_id: str
    generation: int


@attrs.frozen(kw_only=True)
class Register:
    """
    A part of a node's entries for one keeper; an empty one is a sign of life.

    `life` is the life of the asker's process; `keeper_life` is the keeper's, as the asker believes.
    A batch with `sync` belongs to the complete list number `sync`. After its part with `last` the
    keeper ends entries that name the asker and were not in the list. `kept` are listed ids without
    an entry to send yet; `relayed` are entries that name other nodes. `established`: the asker has
    been settled once, so its list and relays are valid evidence.

    `catching_up`: the members changed, and the batch has the ids for which the keeper is new. The
    part with `last` completes these ids. `silent` are members that the asker watches and that do
    not answer.

    `number` grows with each batch of a node: of two batches the keeper obeys the later one. An
    older node numbers none.
    """

    view: bytes
    established: bool
    life: int
    keeper_life: int
    number: int = 0
    sync: int = 0
    first: bool = False
    last: bool = False
    entries: tuple[DirectoryEntry, ...] = ()
    ended: tuple[Ended, ...] = ()
    kept: tuple[str, ...] = ()
    relayed: tuple[DirectoryEntry, ...] = ()
    catching_up: bool = False
    silent: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Registered:
    """
    The keeper's answer to `Register`.

    `conflicts` are entries that count above an entry of the asker. `past` entries do too, and their
    sessions have ended. `full` ids found no room. `restart`: the keeper began a new life, and
    stored nothing of the batch. `settled` False: the keeper needs relays.
    """

    life: int
    settled: bool
    conflicts: tuple[DirectoryEntry, ...] = ()
    past: tuple[DirectoryEntry, ...] = ()
    full: tuple[str, ...] = ()
    restart: bool = False


@attrs.frozen(kw_only=True)
class Supersede:
    """
    Entries that count above the holder's own, from a keeper or from a node that connects the
    client.
    """

    entries: tuple[DirectoryEntry, ...]


@attrs.frozen(kw_only=True)
class Superseded:
    """
    The ids for which the holder has acted durably; `denied` are ids whose sessions are not here.
    """

    client_ids: tuple[str, ...]
    denied: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class WillSent:
    """The id of one connection's published will (see `DirectoryWill`)."""

    client_id: str
    life: int
    number: int


@attrs.frozen(kw_only=True)
class WillsSent:
    """Wills of clients of `node` that are published."""

    node: str
    wills: tuple[WillSent, ...]


@attrs.frozen(kw_only=True)
class Noted:
    """The plain acknowledgement of a request."""


# -- sessions

UNKNOWN_AGE: Final = 1 << 53
"""An age above the age of any session, in milliseconds."""

NONE_NAMED: Final = 1
"""The number of no connection."""


@attrs.frozen(kw_only=True)
class Discard:
    """
    A client began a clean session at the asker: end the earlier session, and close its connection.

    `incarnation` as in `Take`; the asker must learn of a greater one first. The clean session began
    `age` milliseconds ago: a session to which its client connected since is newer, and stays. If no
    node knows the time of that CONNECT, a session is older in two cases: its incarnation is at most
    `through`, or its client left before. `connection` is one that an earlier answer named (see
    `MaybeNewer`); `NONE_NAMED`: none has; 0: the asker is an older node.
    """

    client_id: str
    incarnation: int
    through: int = 0
    age: int = 0
    connection: int = 0


@attrs.frozen(kw_only=True)
class Discarded:
    """The session has ended durably; `incarnation` was its last."""

    incarnation: int


@attrs.frozen(kw_only=True)
class MaybeNewer:
    """
    The client connected at about that time: end the session if its connection is still this one.
    """

    connection: int


@attrs.frozen(kw_only=True)
class Kept:
    """The session stays: its client connected after the discard."""


@attrs.frozen(kw_only=True)
class Take:
    """
    Ask the holder for its session.

    `incarnation` is the holder's incarnation as the asker knows it. `holds` is the incarnation of
    the asker's own session, into which the holder's merges; 0: the asker has none.
    """

    client_id: str
    incarnation: int
    holds: int = 0


@attrs.frozen(kw_only=True)
class Left:
    """An earlier holder `node`, with the zones whose publishes it must finish."""

    node: str
    token: bytes
    remains: PendingPublishes


@attrs.frozen(kw_only=True)
class Taken:
    """
    A copy of the session; an answered `Release` with this token makes it the asker's, at
    `incarnation`.

    `unasked` and `left` as in `OwnedSession`; `left` includes this holder.
    """

    incarnation: int
    token: bytes
    state: bytes
    unasked: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()


@attrs.frozen(kw_only=True)
class MovedTo:
    """The session was here, and moved to `node` at `incarnation`."""

    node: str
    incarnation: int


@attrs.frozen(kw_only=True)
class NotHeld:
    """
    The node holds no session, whatever the directory says; entries up to `incarnation` are void.
    """

    incarnation: int = 0


@attrs.frozen(kw_only=True)
class Busy:
    """The session is moving, or a search for it is running; the asker asks again."""


@attrs.frozen(kw_only=True)
class Release:
    """
    The asker has a durable copy: the holder leaves a tombstone, and the session is the asker's.
    """

    client_id: str
    token: bytes


@attrs.frozen(kw_only=True)
class Released:
    """The tombstone is durable; a repeated `Release` gets the same answer."""


@attrs.frozen(kw_only=True)
class NotReleased:
    """The copy is void: the session stayed, or moved elsewhere."""


@attrs.frozen(kw_only=True)
class Offer:
    """A node offers a session that counts below the receiver's own, to be merged into it."""

    client_id: str
    incarnation: int


@attrs.frozen(kw_only=True)
class Entrust:
    """The asker retires: fetch its session of that client id; the answer is `Noted`."""

    client_id: str
    incarnation: int


@attrs.frozen(kw_only=True)
class Accepted:
    """The receiver will fetch the session."""


@attrs.frozen(kw_only=True)
class AskPendingPublishes:
    """
    Ask an earlier holder for its pending publishes, and confirm that the copy `token` is in use.

    `resolved`: the asker needs no more news of publishes that left from the earlier holder.
    """

    client_id: str
    token: bytes
    resolved: bool = False


@attrs.frozen(kw_only=True)
class PendingPublishesReply:
    """The pending publishes at an earlier holder."""

    remains: PendingPublishes


Request = (
    ShareMembers
    | Ping
    | Lookup
    | Claim
    | Register
    | Supersede
    | WillsSent
    | Take
    | Release
    | Offer
    | AskPendingPublishes
    | Entrust
    | Discard
)
Reply = (
    OtherView
    | Pong
    | Answers
    | Claimed
    | Registered
    | Superseded
    | Noted
    | Taken
    | MovedTo
    | NotHeld
    | Busy
    | Released
    | NotReleased
    | Accepted
    | PendingPublishesReply
    | Discarded
    | MaybeNewer
    | Kept
)

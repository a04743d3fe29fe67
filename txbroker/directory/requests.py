"""
What nodes ask each other about client ids, and what they answer, as plain values.

`view` is the digest of the asker's site members. A node that sees other members answers
`OtherView`: two nodes that do not agree on who keeps an entry must not count each other's answers.
"""

from __future__ import annotations

import attrs

from txbroker.directory.directory_ports import PendingPublishes
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.members import Member


@attrs.frozen(kw_only=True)
class OtherView:
    """The asked node knows these members of all sites; compare, share, ask again."""

    view: bytes
    members: tuple[Member, ...]


@attrs.frozen(kw_only=True)
class ShareMembers:
    """Members that the asked node may not know; answered by `OtherView` with all it knows."""

    members: tuple[Member, ...]


@attrs.frozen(kw_only=True)
class Ping:
    """Are you there?"""


@attrs.frozen(kw_only=True)
class Pong:
    """Yes."""


# -- the index


@attrs.frozen(kw_only=True)
class Lookup:
    """Where are the sessions of these client ids?"""

    view: bytes
    client_ids: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Answer:
    """
    The entry (without its will), or None and the generation of the last session that was known.
    `settled`: the answering node would know, as far as one node can.
    """

    settled: bool
    entry: DirectoryEntry | None = None
    generation: int = 0


@attrs.frozen(kw_only=True)
class Answers:
    """One for each id of a `Lookup`."""

    answers: tuple[Answer, ...]


@attrs.frozen(kw_only=True)
class Claim:
    """The asker wants to begin a session that is kept; refused where another one is known."""

    view: bytes
    entry: DirectoryEntry


@attrs.frozen(kw_only=True)
class Claimed:
    """`conflict` None: the claim stands here; durable when this is answered."""

    conflict: DirectoryEntry | None = None


@attrs.frozen(kw_only=True)
class Ended:
    """The asker's session of that generation, or an earlier one, has ended; a later one has not."""

    client_id: str
    generation: int


@attrs.frozen(kw_only=True)
class Register:
    """
    A part of what `node` has to say to one keeper of entries; empty, it is a sign of life.

    `life` of the asker's process, `keeper_life` that the asker believes the keeper to be in.
    A batch with `sync` belongs to the complete list number `sync`: after the part that is `last`,
    entries that name the asker and were not in the list are dropped. `kept` are ids in the list
    of which there is nothing to say yet, `relayed` entries that name others. `established`: the
    asker has been settled once, so that its list and relays are worth something.

    `catching_up`: the members changed, and the asker says for whose ids the keeper has become one;
    all of that has been said with the part that is `last`. `silent` are members which the asker
    watches and which do not answer it.
    """

    view: bytes
    established: bool
    life: int
    keeper_life: int
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
    `conflicts` are entries that count above one of the asker's; so do `past` ones, of sessions that
    have ended. `full` ids found no room. `restart`: nothing was taken, the keeper began a new life.
    Not `settled`: the keeper needs relays.
    """

    life: int
    settled: bool
    conflicts: tuple[DirectoryEntry, ...] = ()
    past: tuple[DirectoryEntry, ...] = ()
    full: tuple[str, ...] = ()
    restart: bool = False


@attrs.frozen(kw_only=True)
class Supersede:
    """A keeper (or a node that connects the client) to a holder: these count above yours."""

    entries: tuple[DirectoryEntry, ...]


@attrs.frozen(kw_only=True)
class Superseded:
    """
    The ids for which the holder has done, durably, what follows; of those that were said to be
    here, `denied` are not.
    """

    client_ids: tuple[str, ...]
    denied: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class WillSent:
    """The will of one connection (see `DirectoryWill`)."""

    client_id: str
    life: int
    number: int


@attrs.frozen(kw_only=True)
class WillsSent:
    """These wills of clients of `node` are published."""

    node: str
    wills: tuple[WillSent, ...]


@attrs.frozen(kw_only=True)
class Noted:
    """Nothing more to say."""


# -- sessions


@attrs.frozen(kw_only=True)
class Discard:
    """
    A client began anew at the asker: end the session that it has with you; close its connection.

    `incarnation` as in `Take`; a greater one the asker has to hear of first. The client began anew
    `age` milliseconds ago: a session that it has connected to since is newer, and stays. Where
    nobody knows when that was, one up to incarnation `through` is older, or one left before.
    """

    client_id: str
    incarnation: int
    through: int = 0
    age: int = 0


@attrs.frozen(kw_only=True)
class Discarded:
    """It has ended, durably; `incarnation` was its last."""

    incarnation: int


@attrs.frozen(kw_only=True)
class Kept:
    """The session is newer: its client was there since."""


@attrs.frozen(kw_only=True)
class Take:
    """
    Give me the session. `incarnation` at which the asker was told that you hold it; `holds` that
    of a session that the asker has itself (0: none), into which yours will be merged.
    """

    client_id: str
    incarnation: int
    holds: int = 0


@attrs.frozen(kw_only=True)
class Left:
    """The session was at `node`, which has these zones' publishes to finish."""

    node: str
    token: bytes
    remains: PendingPublishes


@attrs.frozen(kw_only=True)
class Taken:
    """
    Here is a copy; it is the asker's at `incarnation` once `Release` with this token is answered.

    `unasked` and `left` as in `Holding`, this holder included.
    """

    incarnation: int
    token: bytes
    state: bytes
    unasked: tuple[str, ...] = ()
    left: tuple[Left, ...] = ()


@attrs.frozen(kw_only=True)
class MovedTo:
    """It was here, and went to `node` at `incarnation`."""

    node: str
    incarnation: int


@attrs.frozen(kw_only=True)
class NotHeld:
    """There is none here, whatever the directory says; it is void up to `incarnation`."""

    incarnation: int = 0


@attrs.frozen(kw_only=True)
class Busy:
    """The session is moving or being looked for; ask again."""


@attrs.frozen(kw_only=True)
class Release:
    """The asker has a durable copy: leave a tombstone, the session is the asker's."""

    client_id: str
    token: bytes


@attrs.frozen(kw_only=True)
class Released:
    """Done, durably; the same answer whenever it is asked again."""


@attrs.frozen(kw_only=True)
class NotReleased:
    """That copy is worth nothing: the session stayed, or went elsewhere."""


@attrs.frozen(kw_only=True)
class Offer:
    """A node whose session of that client id counts below yours: take it in."""

    client_id: str
    incarnation: int


@attrs.frozen(kw_only=True)
class Entrust:
    """The asker goes for good: fetch its session of that client id; answered by `Noted`."""

    client_id: str
    incarnation: int


@attrs.frozen(kw_only=True)
class Accepted:
    """It will be fetched."""


@attrs.frozen(kw_only=True)
class AskPendingPublishes:
    """
    What is left to do there? Also says that the copy with this token is in use here; `resolved`:
    and that nothing has to be known any more of publishes that left from there.
    """

    client_id: str
    token: bytes
    resolved: bool = False


@attrs.frozen(kw_only=True)
class PendingPublishesReply:
    """This."""

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
    | Kept
)

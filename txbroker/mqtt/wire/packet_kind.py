"""The kinds of things on the wire that have properties or reason codes (section 2.1.2). Pure."""

from __future__ import annotations

from enum import IntEnum


class PacketKind(IntEnum):
    """The types of control packets; `WILL` stands for the will inside a CONNECT."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15

    @property
    def phrase(self) -> str:
        """Return the kind with its article, for the reason of a violation."""
        if self is PacketKind.WILL:
            return "a will"
        article = "an" if self.name[0] in "AU" else "a"
        return f"{article} {self.name}"

    @property
    def subject(self) -> str:
        """Return the same for the beginning of a sentence."""
        phrase = self.phrase
        return phrase[0].upper() + phrase[1:]

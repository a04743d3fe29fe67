"""CORE: recognises the address of a Spark master."""

from __future__ import annotations

import re

REMEDY = "local[N], local[*], spark://HOST:PORT, yarn or k8s://URL is wanted"

_STANDALONE = r"spark://[^\s,]+:\d+(,[^\s,]+:\d+)*"
_MASTER = re.compile(rf"local(\[[\w*,-]+\])?|local-cluster\[[\d, ]+\]|{_STANDALONE}|yarn|k8s://.+")
_HERE = re.compile(r"local|spark://(127\.[\d.]+|localhost):")


def is_master(text: str) -> bool:
    """True if Spark accepts the text as a master; the address itself is unchecked."""
    return _MASTER.fullmatch(text) is not None


def is_here(master: str) -> bool:
    """True if all of Spark runs on this machine, so that no other address need be bound."""
    return _HERE.match(master) is not None


def addresses(master: str) -> list[tuple[str, int]]:
    """Return the addresses of a standalone master and its stand-ins; none for other masters."""
    if not master.startswith("spark://"):
        return []
    parts = (one.rpartition(":") for one in master.removeprefix("spark://").split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in parts]

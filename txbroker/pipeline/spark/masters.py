"""CORE: what may be given as a Spark master."""

from __future__ import annotations

import re

REMEDY = "local[N], local[*], spark://HOST:PORT, yarn or k8s://URL is wanted"

_STANDALONE = r"spark://[^\s,]+:\d+(,[^\s,]+:\d+)*"
_MASTER = re.compile(rf"local(\[[\w*,-]+\])?|local-cluster\[[\d, ]+\]|{_STANDALONE}|yarn|k8s://.+")
_HERE = re.compile(r"local|spark://(127\.[\d.]+|localhost):")


def is_master(text: str) -> bool:
    """Whether Spark takes it for one; of the address nothing is known yet."""
    return _MASTER.fullmatch(text) is not None


def is_here(master: str) -> bool:
    """Whether all of it runs on this machine, so that nothing need listen on other addresses."""
    return _HERE.match(master) is not None


def addresses(master: str) -> list[tuple[str, int]]:
    """Where a standalone master listens, or those that stand in for it; none of another kind."""
    if not master.startswith("spark://"):
        return []
    parts = (one.rpartition(":") for one in master.removeprefix("spark://").split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in parts]

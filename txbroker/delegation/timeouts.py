"""
Timeouts in seconds that both sides of the control plane share, and the version of its protocol.
"""

from __future__ import annotations

PROTOCOL_VERSION = 1
"""Version of the control plane; a node refuses a newer peer with a reason of one line."""

ALIVE_EVERY = 2.0
SILENCE = 5.0
HANDOVER_STEP = 10.0
"""
`ALIVE_EVERY`: seconds between two signs of life on a join stream. `SILENCE`: seconds without a sign
of life after which a child counts as away. `HANDOVER_STEP`: seconds in which the other node must
finish one step of a handover.
"""

ANNOUNCE_STEP = 2.0
"""Seconds in which a parent must accept an announcement."""

DRAIN_PATIENCE = 15.0
"""Seconds that a retiring node waits for progress of its clients' publishes."""

CLAIM_WAIT = 2.0
"""Seconds that a handover waits for edges to claim their inheritance of the handover before."""

LOST_AFTER = 10.0
"""Seconds without an answer after which a child stops waiting for a parent that may be lost."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
"""Seconds between attempts: the pause doubles from the first to the longest."""

"""Seconds that the two sides of the control plane agree on, and the version that they speak."""

from __future__ import annotations

PROTOCOL_VERSION = 1
"""Of the control plane; a newer peer is refused in one line."""

ALIVE_EVERY = 2.0
SILENCE = 5.0
HANDOVER_STEP = 10.0
"""Seconds: between signs of life, of silence after which a child counts as away, and that the other
side has for one step of a handover."""

DRAIN_PATIENCE = 15.0
"""Seconds that a node which is retired waits for a publish of its clients to go on."""

CLAIM_WAIT = 2.0
"""Seconds that a handover waits for edges to claim what they have from the one before."""

LOST_AFTER = 10.0
"""Seconds without an answer after which a parent that may be gone for good is not waited for."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0
"""Seconds between attempts: doubled from the first to the longest."""

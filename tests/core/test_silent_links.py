"""What comes on a link behind a silence may have waited in the socket."""

from __future__ import annotations

from typing import Any

from .cores import both, publish
from .socket_bench import a_link, header


@both
def test_a_batch_behind_a_silence_is_for_others(core: Any) -> None:
    """Nothing goes on before they have looked, though its header is known."""
    with a_link(core) as link:
        link.packet_reader.heard_at = 15.0  # it is 17.0 now
        assert not link.packet_reader.is_silent(17.0)
        assert link.wait(header(b"one") + publish(b"a")) is None
        link.packet_reader.heard_at = 14.9
        assert link.packet_reader.is_silent(17.0)
        link.batch(header(b"one"), publish(b"a"))
        assert 14.9 == link.packet_reader.heard_at

"""When an operator of ours may believe that a node is given up."""

from __future__ import annotations

from typing import Any, cast

import pytest

from .faulty import FaultyNode
from .operators import give_up


class Lost:
    """A node without a zone, as far as its operator looks at it."""

    name = "b"
    zone = None


@pytest.mark.parametrize(
    ("status", "text", "is_done"),
    [
        (0, "node b is no member any more", True),
        (1, "Error: root:1 cannot be reached", False),
        # It was forgotten, and the answer was lost.
        (1, "Error: no member is called 'b'; there are a, edge, root", True),
        # The root's disk is empty: it has not heard of `b` yet, and the others know it.
        (1, "Error: no member is called 'b'; there are a, root", False),
    ],
)
def test_who_is_no_member_where_all_others_are_is_forgotten(
    status: int, text: str, is_done: bool
) -> None:
    def command(*arguments: str, **_: Any) -> tuple[int, str]:
        assert ("forget", "root:1", "b") == arguments
        return status, text

    node = cast(FaultyNode, Lost())
    assert is_done == give_up(node, "root:1", ["root", "a", "edge"], command)[0]

"""Topics and filters of few levels, so that they match often."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

EVERY_STEP = ["a", "a/b", "/", "b//a", "$a", "$a/a"]
"""Topics that are asked for after each step."""


def topics_of(levels: Sequence[str]) -> st.SearchStrategy[str]:
    """Topics of these levels."""
    return st.lists(st.sampled_from(levels), min_size=1, max_size=4).map("/".join).filter(bool)


def filters_of(levels: Sequence[str]) -> st.SearchStrategy[str]:
    """Filters of these levels and wildcards."""
    return (
        st.tuples(
            st.lists(st.sampled_from([*levels, "+"]), max_size=3),
            st.sampled_from([*levels, "+", "#"]),
        )
        .map(lambda parts: "/".join([*parts[0], parts[1]]))
        .filter(bool)
    )

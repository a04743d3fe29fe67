"""What is said of other nodes is said once, and what is remembered of that is bounded."""

from __future__ import annotations

from txbroker.runtime.log_once import REMEMBERED, LogOnce


def test_the_same_is_no_news_until_all_was_well() -> None:
    told = LogOnce()
    assert [True, False, True, False] == [told.is_news("a", n) for n in (1, 1, 2, 2)]
    assert told.is_news("b", 2)
    told.forget("a")
    assert told.is_news("a", 2)
    assert not told.is_news("b", 2)


def test_names_beyond_the_bound_push_out_the_oldest_news() -> None:
    told = LogOnce()
    for number in range(REMEMBERED):
        assert told.is_news(str(number), 1)
    assert told.is_news("0", 2)
    assert told.is_news("one more", 1)

    assert not told.is_news("0", 2)
    assert not told.is_news("2", 1)
    assert told.is_news("1", 1)

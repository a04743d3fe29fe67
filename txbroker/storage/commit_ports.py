"""What a committer needs from its node, and whom it notifies, as one value each."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from txbroker.model.errors import StoreError
from txbroker.model.timers import Timers
from txbroker.runtime.flush_queue import Flushable

_Action = Callable[[], None]


@attrs.frozen(kw_only=True)
class CommitEvents:
    """
    Whom the committer notifies.

    - `on_full`: the disk became full (True and the reason), or has room again;
    - `on_failed`: the disk is unreliable, and no action will ever run again;
    - `on_written`: the committer wrote something;
    - `on_behind`: too many bytes wait for a sync (True and the amount), or few do again;
    - `on_awaited`: a caller waits for a sync, or no caller does.
    """

    on_full: Callable[[bool, str], None]
    on_failed: Callable[[StoreError], None]
    on_written: _Action = lambda: None
    on_behind: Callable[[bool, str], None] = lambda *_: None
    on_awaited: Callable[[bool], None] = lambda _: None


@attrs.frozen(kw_only=True)
class CommitPorts:
    """
    Where a committer gets turns, time and a thread.

    - `mark_dirty`: flushes the committer at the end of the turn; `end_turn` ends the turn;
    - `in_thread`: `WorkThread.run`;
    - `soon`: runs an action after the packets that have arrived by now are read.
    """

    mark_dirty: Callable[[Flushable], None]
    end_turn: _Action
    in_thread: Callable[[Callable[[], _Action], Callable[[BaseException | None], None]], None]
    timers: Timers
    soon: Callable[[_Action], object] = lambda action: action()

"""Discards that could not be asked for at once: what else is known of the id hides no session."""

from __future__ import annotations

from typing import Any

import pytest

from tests.directory.scenarios import connect, id_kept_by
from tests.directory.test_sole import Story
from tests.support.site import Node, Site
from txbroker.directory import discard_table, session_discard
from txbroker.directory.discard_record import PendingDiscard
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.quorum_read import NoSession, QuorumRead
from txbroker.directory.requests import (
    NONE_NAMED,
    Answer,
    Discard,
    Discarded,
    Kept,
    MaybeNewer,
    MovedTo,
)
from txbroker.directory.session_lookups import SessionSearch
from txbroker.directory.session_ownership import OwnedSession


def two_sites(seed: int = 1, names: str = "ab") -> Site:
    """The last node is a site of its own; all are started, and know each other."""
    sites = dict.fromkeys(names[:-1], "one") | {names[-1]: "two"}
    made = Site(names, seed, sites=sites)
    made.start(len(names))
    made.run(3.0)
    return made


def test_clean_session_hides_no_kept_one_from_its_own_discard() -> None:
    """By its numbers the clean one counts above a session that it knows nothing of."""
    story = Story(2, 3)
    story.run([])
    story.site.run(5.0)
    story.isolate(1)
    story.wait(4.0)
    for number in (1, 0):
        story.kept(number)
        story.answered()
        story.drop()
    story.clean(0)
    story.answered()
    for node in story.nodes:
        node.directory.replicator.batch = lambda *_: None  # type: ignore[method-assign]
    story.connection = None
    story.heal()
    story.site.run(30.0)

    assert not story.nodes[1].host.kept
    assert not story.nodes[0].directory.clearings.is_due("x")


def test_what_one_of_two_says_alone_is_not_sure() -> None:
    """Though the other one be heard again before that is acted on."""
    nothing = Answer(settled=True)
    found = []
    for needed in (1, 2):
        lookup = QuorumRead(("p", "q"), {}, needed)
        lookup.add_answer("p", nothing)
        lookup.add_answer("q", nothing)
        found.append(lookup.decide())

    assert [NoSession(generation=0, is_sole=True), NoSession(generation=0)] == found


def test_discard_of_one_of_two_waits_for_the_other() -> None:
    """However long nothing is found."""
    story = Story(2, 3)
    story.run([])
    story.site.run(5.0)
    story.kill(1, 3)
    story.wait(4.0)
    story.clean(0)
    story.answered()
    story.drop()
    story.wait(60.0)
    clearings = story.nodes[0].directory.clearings
    before = clearings.is_due("x")
    story.start(1)
    story.wait(30.0)

    assert (True, False) == (before, clearings.is_due("x"))


def test_session_whose_node_was_killed_with_its_client_is_discarded_from_another_site() -> None:
    """Nobody there could know of the session: its CONNECT came before."""
    whole = two_sites()
    connect(whole, "b")
    whole.run(1.0)
    whole.nodes["b"].kill()
    connect(whole, "a", clean=True).lost(is_will_due=False)
    whole.run(3.0)
    whole.nodes["b"].start()
    whole.run(60.0)

    assert [] == whole.holders("x")


@pytest.mark.parametrize("is_back", [False, True])
def test_session_that_its_client_came_back_to_is_kept_though_its_node_was_killed(
    is_back: bool,
) -> None:
    """It came back when nobody could hear of that, and was there when the node ended."""
    whole = two_sites()
    connect(whole, "b").lost(is_will_due=False)
    whole.isolate("b")
    whole.run(1.0)
    connect(whole, "a", clean=True).lost(is_will_due=False)
    whole.run(1.0)
    if is_back:
        connect(whole, "b")
    whole.nodes["b"].kill()
    whole.run(3.0)
    whole.nodes["b"].start()
    whole.heal()
    whole.run(60.0)

    assert (["b"] if is_back else []) == whole.holders("x")


def test_connect_of_an_earlier_life_says_what_is_newer() -> None:
    """To the millisecond, whatever incarnation the session came to."""
    whole = two_sites()
    whole.run(1.0)
    began = whole.now
    connect(whole, "b")
    whole.nodes["b"].kill(3)
    whole.run(100.0)
    whole.nodes["b"].start()
    holder = whole.nodes["b"].directory
    for clean, reply in ((began - 1.0, Kept), (began + 1.0, Discarded)):
        age = int((whole.now - clean) * 1000)
        request = Discard(client_id="x", incarnation=9, through=0, age=age)
        assert isinstance(holder.clearings.answers.discard("a", request), reply)


def test_question_about_an_earlier_incarnation_ends_nothing() -> None:
    """It may come late; who asks has to hear of the later one first."""
    whole = two_sites()
    whole.run(1.0)
    connect(whole, "b").lost(is_will_due=False)
    whole.run(100.0)
    holder = whole.nodes["b"].directory
    held = holder.ownership.held["x"].incarnation
    request = Discard(client_id="x", incarnation=held - 1, through=9, age=1)

    moved = MovedTo(node="b", incarnation=held)
    assert moved == holder.clearings.answers.discard("a", request)
    assert ["b"] == whole.holders("x")


@pytest.mark.parametrize("is_healed_first", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_session_at_a_node_that_joined_while_this_one_was_cut_off_is_discarded(
    seed: int, is_healed_first: bool
) -> None:
    """The other keepers are heard before this one hears of the new node."""
    late = Site("abc", seed, sites={"a": "one", "b": "one", "c": "two"})
    late.start(2)
    late.run(3.0)
    late.isolate("b")
    late.nodes["c"].start()
    late.run(1.0)
    connect(late, "c").lost(is_will_due=False)
    if is_healed_first:
        late.nodes["b"].join = lambda: None  # type: ignore[method-assign]
        late.after(0.7, late.heal)
    connect(late, "b", clean=True).lost(is_will_due=False)
    late.nodes["b"].directory.members.merge_list(late.nodes["a"].directory.members.all)
    late.heal()
    late.run(60.0)

    assert [] == late.holders("x")
    assert not late.nodes["b"].directory.clearings.is_due("x")


def test_what_is_found_after_all_is_waited_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks with nothing between them end a discard."""
    found = session_discard._Found
    monkeypatch.setattr(discard_table, "SURE", 10.0)
    whole = two_sites()
    clearings, clock = whole.nodes["a"].directory.clearings, whole.now
    clearings.pending._now = lambda: clock
    clearings.pending.put("x", PendingDiscard(generation=0))
    search = SessionSearch("x")
    due = []
    for passed, is_whole in ((0.0, True), (9.0, True), (0.5, False), (1.0, True), (9.9, True)):
        clock += passed
        clearings._conclude(search, found(is_whole=is_whole))
        due.append(clearings.is_due("x"))
    clock += 0.2
    clearings._conclude(search, found(is_whole=True))

    assert [True] * 5 == due
    assert not clearings.is_due("x")


def test_session_offered_to_one_that_was_discarded_ends_with_it() -> None:
    """
    It counts below the one at another site, is offered to that one's node, and is told of its end:
    it must not stand up in its place.
    """
    whole = two_sites(names="abcd")
    connect(whole, "d").lost(is_will_due=False)
    connect(whole, "a").lost(is_will_due=False)
    whole.run(5.0)
    node = whole.nodes["d"]
    below = OwnedSession(incarnation=1)
    node.host.kept["x"] = set()
    node.directory.ownership.store("x", below)
    whole.cut("d", "a")
    node.directory.conflicts.offers["x"] = "a"
    node.directory.replicator.own["x"] = DirectoryEntry(
        client_id="x", node="d", incarnation=1, persistent=True
    )
    connect(whole, "b", clean=True).lost(is_will_due=False)
    whole.heal()
    whole.run(60.0)

    assert [] == whole.holders("x")


def test_discard_is_remembered_by_the_time_of_its_connack() -> None:
    """Whatever the disk loses of what was written later."""
    whole = two_sites()
    connect(whole, "b").lost(is_will_due=False)
    whole.isolate("b")
    connect(whole, "a", clean=True)
    whole.nodes["a"].kill(survivors=0)
    whole.nodes["a"].start()

    assert whole.nodes["a"].directory.clearings.is_due("x")
    whole.heal()
    whole.run(60.0)
    assert [] == whole.holders("x")


@pytest.mark.parametrize("was_killed", [False, True])
def test_discard_of_a_holder_that_was_away_is_forgotten_when_it_is_done(was_killed: bool) -> None:
    """The holder is asked again each time, and has nothing more."""
    whole = two_sites(names="abc")
    connect(whole, "b").lost(is_will_due=False)
    whole.run(3.0)
    whole.isolate("b")
    connect(whole, "a", clean=True).lost(is_will_due=False)
    if was_killed:
        whole.nodes["a"].kill(survivors=0)
        whole.nodes["a"].start()
    clearings = whole.nodes["a"].directory.clearings
    due = clearings.pending.get("x")
    assert due is not None
    whole.heal()
    whole.run(60.0)

    assert [("b", 1)] == list(due.holders)
    assert [] == whole.holders("x")
    assert not clearings.is_due("x")


def test_what_was_ended_is_looked_for_anew() -> None:
    """Though nothing was found before, and for long."""
    whole = two_sites(names="abc")
    connect(whole, "c").lost(is_will_due=False)
    whole.run(3.0)
    whole.isolate("c")
    connect(whole, "a", clean=True).lost(is_will_due=False)
    clearings = whole.nodes["a"].directory.clearings
    due = clearings.pending.get("x")
    assert due is not None
    clearings.pending.forget("x")
    whole.heal()
    whole.run(5.0)
    before = whole.holders("x")
    clearings.pending.put("x", due)
    clearings.pending._whole["x"] = whole.now - discard_table.SURE
    whole.run(5.0)

    assert (["c"], []) == (before, whole.holders("x"))
    assert clearings.is_due("x")
    whole.run(60.0)
    assert not clearings.is_due("x")


def test_kept_session_of_which_keepers_know_the_clean_one_before_ends_by_connack() -> None:
    """Its holder is asked about the clean one, and names the kept one: that one is followed."""
    four = Site("abcd", 1)
    four.start(4)
    four.run(3.0)
    client_id = id_kept_by(four, but_not="d")
    before = connect(four, "d", client_id)
    four.run(1.0)
    holder = four.nodes["d"].directory
    holder.replicator.batch = lambda *_: None  # type: ignore[method-assign]
    clean = DirectoryEntry(
        client_id=client_id, node="d", incarnation=2, persistent=False, replaces=1
    )
    raised = DirectoryEntry(client_id=client_id, node="d", incarnation=2, persistent=True)
    holder.conflicts.supersede(raised, has_ended=False)
    for name in "abc":
        four.nodes[name].directory.replica.entries.store(clean)
    after = connect(four, "a", client_id, clean=True)

    assert [] == four.holders(client_id)
    assert (False, True) == (before.is_open, after.is_open)


@pytest.mark.parametrize("is_clean", [False, True])
def test_session_of_the_last_millisecond_is_older(is_clean: bool) -> None:
    """Its client went on at once: it is not refused as the one that came before."""
    whole = two_sites(names="abc")
    whole.delay = lambda: 0.0002  # type: ignore[method-assign]
    for number in range(40):
        client_id = f"x{number}"
        before = connect(whole, "b", client_id, clean=is_clean)
        after = connect(whole, "a", client_id, clean=True)
        assert (False, False) == (before.is_open, after.present)
        whole.run(0.0103)


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("gap", [0.002, 0.05])
def test_late_question_ends_no_session_that_the_client_went_on_to(
    is_clean: bool, gap: float
) -> None:
    """Its client left the asker before, and connected where the question then came."""
    whole = two_sites(names="abc")
    before = connect(whole, "b", clean=is_clean)
    whole.run(1.0)
    if not is_clean:
        before.lost(is_will_due=False)
    late: list[Discard] = []
    send = whole.send

    def held_up(source: Node, target: str, request: Any, answered: Any) -> None:
        wait = 0.0
        if isinstance(request, Discard) and not late:
            late.append(request)
            wait = 0.5
        whole.after(wait, lambda: send(source, target, request, answered))

    whole.send = held_up  # type: ignore[method-assign]
    left = whole.nodes["a"].connect("x", clean=True)
    whole.run_until(lambda: bool(late))
    left.lost(is_will_due=False)
    whole.run(gap)
    after = connect(whole, "b", clean=is_clean)
    whole.run(60.0)

    assert after.is_open
    assert ([] if is_clean else ["b"]) == whole.holders("x")


def test_older_asker_is_answered_at_once() -> None:
    """It names no connection, and does not know of doubts."""
    whole = two_sites()
    connect(whole, "b")
    whole.run(1.0)
    answers = whole.nodes["b"].directory.clearings.answers
    replies = [
        answers.discard("a", Discard(client_id="x", incarnation=9, age=1, connection=connection))
        for connection in (NONE_NAMED, 0)
    ]

    assert [MaybeNewer, Discarded] == [type(reply) for reply in replies]


@pytest.mark.parametrize("is_heard", [False, True])
def test_session_at_a_site_that_was_not_heard_of_is_discarded(is_heard: bool) -> None:
    """The node hears of the site later, or while it waits for the keepers that it knows."""
    sites = {"a": "one", "b": "one", "c": "one", "e": "two"}
    late = Site("abce", 1, sites=sites)
    late.start(3)
    late.run(3.0)
    late.cut("a", "b")
    late.cut("b", "e")
    late.nodes["e"].start()
    late.run(3.0)
    connect(late, "e").lost(is_will_due=False)
    clean = late.nodes["b"].connect("x", clean=True)
    if is_heard:
        members = late.nodes["a"].directory.members.all
        late.nodes["b"].directory.members.merge_list(members)
    late.run_until(lambda: clean.is_answered)
    clean.lost(is_will_due=False)
    assert is_heard is late.nodes["b"].directory.clearings.is_due("x")
    late.run(20.0)
    late.heal()
    late.run(60.0)

    assert [] == late.holders("x")
    assert not late.nodes["b"].directory.clearings.is_due("x")


def end_between_discard_and_clean_session(whole: Site) -> None:
    """Node a has stored the discard, as another site names its session, and dies at that."""
    connect(whole, "c").lost(is_will_due=False)
    connect(whole, "a").lost(is_will_due=False)
    whole.run(5.0)
    node = whole.nodes["a"]
    node.connect("x", clean=True)
    whole.run_until(lambda: node.directory.clearings.is_due("x"))
    node.kill(survivors=1)
    node.start()
    assert (["a"], True) == (whole.holders("x"), node.directory.clearings.is_due("x"))


def test_session_here_ends_though_its_node_ended_before_the_clean_one_began() -> None:
    """The discard would stay as long as the session does, and ask the keepers each second."""
    whole = two_sites(names="abc")
    end_between_discard_and_clean_session(whole)
    whole.run(60.0)

    assert [] == whole.holders("x")
    assert not whole.nodes["a"].directory.clearings.is_due("x")


@pytest.mark.parametrize("is_there", [False, True])
def test_session_here_stays_if_its_client_came_back_to_it(is_there: bool) -> None:
    """Before the discard is looked at again; and the discard ends, too."""
    whole = two_sites(names="abc")
    end_between_discard_and_clean_session(whole)
    after = connect(whole, "a")
    if not is_there:
        after.lost(is_will_due=False)
    whole.run(60.0)

    assert (True, is_there) == (after.present, after.is_open)
    assert ["a"] == whole.holders("x")
    assert not whole.nodes["a"].directory.clearings.is_due("x")

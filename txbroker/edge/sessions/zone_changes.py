"""
Zone cuts as an edge follows them: a zone is delegated, comes back, or is reclaimed.

Interest, publishes and cursors move to the zone that has the topics from then on. The streams of
owners announce the changes, and so do the answers of the resolver. For each zone below a route:

- cut (`on_cut`, `replace_cuts`): the edge claims the new zone. Sessions follow its part after the
  parent's records before the cut;
- ending (`end`): another owner has announced the part's end. Its link is closed, and sessions read
  the rest from the journal;
- gone (`on_zone_end`): its stream ended, or no cut leads to it. Its unanswered publishes go to the
  zones that own their topics now, its doubts to the zone above.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txbroker.edge.routing.connector import Connector
from txbroker.edge.routing.publisher import Publisher
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.routing.route import Route
from txbroker.edge.routing.zone_claims import StreamPosition
from txbroker.edge.sessions.interests import Interests
from txbroker.edge.sessions.session_cursors import SessionCursors
from txbroker.edge.sessions.transition_log import TransitionLog
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import deepest_enclosing, is_within
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.session.session import Session


class ZoneChanges:
    """The cuts of all zones that one edge knows."""

    def __init__(
        self,
        zones: ResolverCache,
        connector: Connector,
        *,
        publisher: Publisher,
        interests: Interests,
        cursors: SessionCursors,
        transitions: TransitionLog,
    ) -> None:
        self._zones = zones
        self._connector = connector
        self._publisher = publisher
        self._interests = interests
        self._cursors = cursors
        self._transitions = transitions

    # from owners (links and the node's own zone)

    def on_cut(self, route: Route, cut: ZoneCut) -> None:
        """
        Follow a cut: the owner's stream announces that another node serves this apex from here on.
        """
        cuts = route.learn_cuts({}) if route.cuts is None else route.cuts
        for apex in cuts.within(cut.apex):
            if apex != cut.apex:
                cuts.drop(apex)
        cuts.put(cut)
        self._transitions.record_start(JournalId(cut.apex, cut.epoch), is_return=False)
        below = self._zones.add(cut)
        is_early = self._is_early(below)
        self._interests.on_cut(route, below, is_read=is_early)
        self._resume(below)
        self._follow(route, below, self._cursors.behind_in(route), is_early=is_early)
        self._publisher.move_below(route, below)
        self._interests.refresh()

    def on_forgotten_cut(self, route: Route, cut: ZoneCut) -> None:
        """
        Add a cut that the owner had forgotten: another node has served this apex for long.

        Sessions that followed the zone around the apex have no backlog in the apex's history.
        """
        others = [c for c in (route.cuts or {}).values() if not is_within(c.apex, cut.apex)]
        self.replace_cuts(route, [*others, cut])
        self._interests.refresh()

    def on_cut_ended(self, route: Route, apex: str, epoch: int, offset: int | None = None) -> None:
        """
        Follow a hand-back: the owner's stream announces that the child gave its zone back.

        `offset`: the offset after which the subtree is this zone's again, if that was some time
        ago.
        """
        here = 0 if route.position is None else route.position.offset
        self._return_zone(route, apex, epoch, here if offset is None else offset)

    def on_reclaimed(self, route: Route, apex: str, epoch: int, after: StreamPosition) -> None:
        """
        Follow a reclaim: the zone was taken from the child, and continues here behind `after`.

        Records that only the child has are cut off.
        """
        below = self._zones.get(apex)
        if below is None or below.epoch <= epoch:
            route.claims.reclaim(apex, after)
        self._return_zone(route, apex, epoch, after.offset)

    def on_zone_end(self, route: Route, *, is_whole: bool) -> None:
        """
        Move all that the edge has in a zone to the nearest zone above: the owner serves it no more.

        `is_whole`: its stream announced the end itself, after all its records.
        """
        if self._zones.get(route.apex) is not route:
            return
        self._connector.disconnect(route)
        above = self._zones.enclosing(route.apex)
        self._zones.remove(route)
        route.leave()
        if above is not route:
            self._fall_back(route, above, is_whole=is_whole)
        returned = [*route.queue.take_sent(), *route.queue.take_waiting()]
        route.interest.clear()
        self._publisher.redistribute(returned)
        self._publisher.forget(route, above)
        self._interests.refresh()

    # from the edge

    def replace_cuts(self, route: Route, cuts: Iterable[ZoneCut], *, follow: bool = False) -> None:
        """
        Replace the cuts of the zone by these, and by those of zones whose own streams flow.

        `follow`: the cuts came with the zone's stream, so sessions follow new zones from their
        beginning.
        """
        before, now = dict(route.cuts or ()), {cut.apex: cut for cut in cuts}
        # An owner that lost its disk forgot its cuts until the children are back. Without them the
        # edge would withdraw its interest below, and sessions would miss what the children take.
        now |= {
            apex: cut
            for apex, cut in before.items()
            if apex not in now
            and self._flows(apex)
            and not any(is_within(apex, told) or is_within(told, apex) for told in now)
        }
        route.learn_cuts(now)
        news: list[Route] = []
        behind = self._cursors.behind_in(route) if follow else []
        for cut in now.values():
            below = self._zones.add(cut)
            known = before.get(cut.apex)
            if known is None or known.epoch != cut.epoch:
                start = None if follow else self._inherited_at(route, below)
                if not follow and self._is_unseen(route, below):
                    self._cursors.on_unseen_cut(route, below)
                is_early = self._is_early(below) and (follow or start is not None)
                self._interests.on_cut(route, below, is_read=is_early)
                self._resume(below)
                if start is not None:
                    self._inherit(below, start, is_early=is_early)
                elif follow:
                    self._transitions.record_start(JournalId(cut.apex, cut.epoch), is_return=False)
                    self._follow(route, below, behind, is_early=is_early)
                news.append(below)
        self._publisher.move_below(route, *news)

    def end(self, part: JournalId, teller: Route) -> None:
        """Stop the stream of a part that is over; sessions read the rest from the journal."""
        route = self._zones.get(part.zone)
        if route is None or route is teller or route.epoch > part.epoch or route.is_local:
            return
        route.end_part(part.epoch)
        if route.port is None:
            self.on_zone_end(route, is_whole=False)
        else:
            route.port.close("the zone went back to the node above")

    def forget_ended(self, route: Route) -> None:
        """
        Remove zones below to which the owner's cuts no longer lead, and whose owners are not
        connected.
        """
        cuts: Mapping[str, ZoneCut] = {} if route.cuts is None else route.cuts
        for below in self._zones.within(route.apex):
            if below.port is not None or below.is_local or below.apex in cuts:
                continue
            if deepest_enclosing(below.apex, cuts) is None:
                self.on_zone_end(below, is_whole=False)

    # internal

    def _flows(self, apex: str) -> bool:
        """True if the zone's own stream is here; it announces its end itself."""
        route = self._zones.get(apex)
        return route is not None and (route.is_local or route.port is not None)

    def _resume(self, below: Route) -> None:
        """
        Resume a part that had ended here, as the owner above had forgotten the zone.

        A publish may have kept its link, without filters. Positions of that stream cover no
        session, so the next link tells the filters first, and sessions read up to it.
        """
        if self._cursors.reopen_part(below.part) and below.port is not None and not below.is_local:
            below.port.close("the zone above knows this one again")

    def _return_zone(self, route: Route, apex: str, epoch: int, offset: int) -> None:
        """
        Give a zone back to `route`: every session reads on there, behind that offset.

        Sessions read the rest of the part at its earlier node from the journal, not from its
        stream. The stream may be dead, and new records wait for the claim meanwhile.
        """
        below = self._zones.get(apex)
        if route.cuts is not None:
            route.cuts.drop(apex)
        if below is not None and below.epoch > epoch:
            return
        if below is not None and below.is_local:
            return  # the local zone announces its end itself, at once
        self._transitions.record_return(JournalId(apex, epoch), LogPosition(route.part, offset))
        if below is None:
            route.claim(apex, is_read=True)
            self._interests.refresh()
        else:
            self.end(JournalId(apex, epoch), route)

    def _fall_back(self, route: Route, above: Route, *, is_whole: bool) -> None:
        """Move the edge's state to the zone above, or to a newer epoch of the zone."""
        again = self._granted_again(route, above)
        self._interests.on_zone_end(route, above)
        self._cursors.on_ended(route, above, is_whole=is_whole)
        if again is not None:
            below = self._zones.add(again)
            below.claim(route.apex)
            self._follow(above, below, self._cursors.behind_in(above))
        elif above.cuts is not None:
            above.cuts.drop(route.apex)
            # Cuts below stay in force before the heir has announced them. Otherwise the interest
            # there would be withdrawn for a moment.
            above.learn_cuts({**(route.cuts or {}), **above.cuts})
        above.queue.add_doubts(route.queue.take_doubts())
        if above.queue.doubts:
            self._publisher.request_marks(above)
        if above.port is None and above.cut is not None:
            self._connector.resolve(above)

    def _granted_again(self, route: Route, above: Route) -> ZoneCut | None:
        # The stream from above may be ahead of the zone's own stream, which has just announced the
        # end. The cut of a newer epoch must survive.
        known = None if above.cuts is None else above.cuts.get(route.apex)
        ended = route.position.epoch if route.position is not None else route.epoch
        return known if known is not None and known.epoch > ended else None

    def _is_early(self, below: Route) -> bool:
        """
        True if the zone's link came before the news of its cut: its position covers no session.

        A publish may have needed that link, or this node serves the zone. The owner counts records
        as delivered that it holds for the claim. A client may leave before these come, and the edge
        may end. So all sessions read them from the journal.
        """
        position = below.position
        if position is None or position.epoch != below.epoch or below.interest.filters:
            return False
        return below.apex not in below.claims.apexes and self._cursors.is_new(below.part)

    def _inherited_at(self, route: Route, below: Route) -> LogPosition | None:
        """
        Return where the zone was cut if nobody follows it yet, and the stream from above is away.

        The zone's owner has said so. The link may have asked before that stream broke, and no
        stream announces this cut as new.
        """
        is_new = below.position is None or self._is_early(below)
        position, start = route.position, below.start_offset(route.part)
        if route.port is not None or not is_new or position is None or start is None:
            return None
        return LogPosition(route.part, start) if position.offset <= start else None

    def _is_unseen(self, route: Route, below: Route) -> bool:
        """True if the stream from above is away, and nobody has told where the zone was cut."""
        is_followed = route.port is None and route.position is not None
        return is_followed and below.position is None and below.start_offset(route.part) is None

    def _inherit(self, below: Route, start: LogPosition, *, is_early: bool) -> None:
        """Follow a zone from its beginning: it was cut at this place of the zone above."""
        if self._interests.touches(below.apex):
            if not is_early:
                below.begin_part(below.epoch)
            self._cursors.on_inherited(below, start, is_early=is_early)

    def _follow(
        self, route: Route, below: Route, behind: Iterable[Session], *, is_early: bool = False
    ) -> None:
        """
        Follow, in a zone that was cut, all that the edge followed in the zone around it.

        `is_early`: all sessions read the zone's journal from its beginning (`_is_early`).
        """
        position = below.position
        if is_early:
            if self._interests.touches(below.apex):
                self._cursors.on_cut(route, below, self._cursors.all())
            return
        if route.position is None or (position is not None and position.epoch >= below.epoch):
            return
        if below.port is not None:
            return  # the link has the stream of an earlier epoch, which has not ended yet
        if not self._interests.touches(below.apex):
            return
        if position is not None:
            here = LogPosition(route.part, route.position.offset)
            self._cursors.on_renewed(below, position, below.epoch, here)
        below.begin_part(below.epoch)
        self._cursors.on_cut(route, below, behind)

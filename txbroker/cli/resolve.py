"""`txbroker resolve`: finds the owner of a topic or filter, and shows the walk to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from txbroker.cli.options import Topic, as_json, node_address
from txbroker.cli.output import one_line, show_json, show_table, zone_name
from txbroker.config import Address

if TYPE_CHECKING:
    from txbroker.cli.resolution_walk import ResolutionWalk, WalkStep


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker resolve 127.0.0.1:7001 'home/+/temperature'
    """
)
@node_address
@click.argument("question", metavar="TOPIC_OR_FILTER", type=Topic(wildcards=True))
@as_json
def resolve(address: Address, question: str, as_json: bool) -> None:
    """
    Show who owns a topic or filter, by a walk that starts at a node.

    HOST:PORT is the node's gRPC address. A node that does not cover the question names the node to
    start from. Each later node answers for its zone, and refers to deeper zones. The exit status is
    1 if an owner cannot be found or reached.
    """
    # `node_calls` says why the import is not at the top.
    from txbroker.cli.node_calls import ask
    from txbroker.cli.resolution_walk import ResolutionWalk

    walk = ask(lambda channels: ResolutionWalk(channels, question).run(str(address)))
    if as_json:
        show_json(
            {
                "question": question,
                "steps": [_step_as_dict(step) for step in walk.steps],
                "owners": [attrs.asdict(owner) for owner in walk.owners],
            }
        )
    else:
        _show(walk)
    if not walk.complete:
        raise click.ClickException(f"not every owner of {question!r} could be found")


def _step_as_dict(step: WalkStep) -> dict[str, object]:
    values = attrs.asdict(step)
    del values["referrals"]
    return values


def _show(walk: ResolutionWalk) -> None:
    from txbroker.cli.resolution_walk import is_local

    if is_local(walk.question):
        owner = walk.owners[0]
        click.echo(
            f"{one_line(walk.question)} is local to each node: {owner.node} at {owner.grpc} answers"
            " for itself"
        )
        return
    show_table(
        ("STEP", "ASKED", "ANSWER", "ZONE", "EPOCH", "TTL", "REFERS TO"),
        [
            (
                str(number),
                step.asked,
                step.answer,
                "" if step.zone is None else zone_name(step.zone),
                _text(step.epoch),
                _text(step.ttl),
                ", ".join(cut.apex for cut in step.referrals),
            )
            for number, step in enumerate(walk.steps, 1)
        ],
    )
    if not walk.owners:
        return
    click.echo()
    show_table(
        ("OWNER OF", "NODE", "GRPC", "EPOCH"),
        [
            (zone_name(owner.zone or ""), owner.node, owner.grpc, _text(owner.epoch))
            for owner in walk.owners
        ],
    )


def _text(number: int | None) -> str:
    return "" if number is None else str(number)

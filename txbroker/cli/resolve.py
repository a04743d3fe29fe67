"""`txbroker resolve`: finds the owner of a topic or filter, and shows the walk to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from txbroker.cli.options import Topic, as_json, node_address
from txbroker.cli.output import one_line, show_json, show_table, zone_name
from txbroker.config import Address
from txbroker.model.topics import is_sys

if TYPE_CHECKING:
    from txbroker.delegation.resolution import Resolution, ZoneAnswer
    from txbroker.model.zone_cut import ZoneCut


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
    from txbroker.cli.resolution_walk import walk_to_owners

    walk = ask(lambda channels: walk_to_owners(channels, question, str(address)))
    if as_json:
        steps = [_step_as_dict(*step) for step in walk.steps]
        owners = [_owner_as_dict(owner) for owner in walk.owners]
        show_json({"question": question, "steps": steps, "owners": owners})
    else:
        _show(question, walk)
    if not walk.is_complete:
        raise click.ClickException(f"not every owner of {question!r} could be found")


def _step_as_dict(asked: ZoneCut, answer: ZoneAnswer) -> dict[str, Any]:
    return {
        "asked": asked.grpc,
        "answer": answer.kind,
        **_zone_of(answer.zone),
        "ttl": answer.ttl,
    }


def _owner_as_dict(owner: ZoneCut) -> dict[str, Any]:
    zone = _zone_of(owner)
    return {"zone": zone["zone"], "node": owner.node, "grpc": owner.grpc, "epoch": zone["epoch"]}


def _zone_of(cut: ZoneCut) -> dict[str, Any]:
    """Nothing for a pure edge: nobody holds a zone before epoch 1, and it never does."""
    has_zone = bool(cut.apex or cut.epoch)
    return {"zone": cut.apex if has_zone else None, "epoch": cut.epoch if has_zone else None}


def _show(question: str, walk: Resolution) -> None:
    if is_sys(question):
        owner = walk.owners[0]
        click.echo(
            f"{one_line(question)} is local to each node: {owner.node} at {owner.grpc} answers"
            " for itself"
        )
        return
    show_table(
        ("STEP", "ASKED", "ANSWER", "ZONE", "EPOCH", "TTL", "REFERS TO"),
        [(str(number), *_cells(*step)) for number, step in enumerate(walk.steps, 1)],
    )
    if not walk.owners:
        return
    click.echo()
    show_table(
        ("OWNER OF", "NODE", "GRPC", "EPOCH"),
        [(zone_name(one.apex), one.node, one.grpc, str(one.epoch)) for one in walk.owners],
    )


def _cells(asked: ZoneCut, answer: ZoneAnswer) -> list[str]:
    values = _step_as_dict(asked, answer)
    zone = "" if values["zone"] is None else zone_name(values["zone"])
    numbers = ("" if values[key] is None else str(values[key]) for key in ("epoch", "ttl"))
    referrals = ", ".join(cut.apex for cut in answer.referrals)
    return [asked.grpc, answer.kind, zone, *numbers, referrals]

"""
The command `txbroker`. Each group of commands has a file; `main` puts them together.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage (click's own). Results go to stdout, errors
and logs to stderr. A command that fails raises `click.ClickException` or calls `sys.exit(1)`.
"""

from __future__ import annotations

import io
import os
import sys

import click

from txbroker import __version__
from txbroker.cli import (
    backup,
    check,
    client,
    divergent,
    forget,
    pipeline,
    pipeline_audit,
    pipeline_plan,
    pipeline_report,
    reclaim,
    repair,
    resolve,
    retire,
    rpc,
    run,
    sessions,
    tree,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="txbroker", message="%(prog)s %(version)s")
def main() -> None:
    """
    A federated MQTT broker: one topic namespace served by many nodes.

    HOST:PORT is the gRPC address of a node (of pub, sub and rpc the MQTT address), FILE a topology
    file.
    """
    os.umask(0o077)  # Repair, archives and reports write clients' messages: keep other users out.
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Without an error handler, a name that the terminal cannot show fails the command.
        sys.stdout.reconfigure(errors="backslashreplace")


for _command in (
    run.run,
    check.check,
    tree.tree,
    resolve.resolve,
    client.pub,
    client.sub,
    rpc.rpc,
    retire.retire,
    reclaim.reclaim,
    forget.forget,
    divergent.divergent,
    sessions.sessions,
    backup.backup,
    repair.repair,
    pipeline.pipeline,
):
    main.add_command(_command)

for _command in (
    pipeline_report.traffic,
    pipeline_audit.audit,
    pipeline_plan.plan,
    pipeline_report.report,
):
    pipeline.pipeline.add_command(_command)

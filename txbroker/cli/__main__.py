"""Runs the command `txbroker` as `python -m txbroker.cli`."""

from txbroker.cli import main

main(prog_name="txbroker")

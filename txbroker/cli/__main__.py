"""`python -m txbroker.cli` is the command `txbroker`."""

from txbroker.cli import main

main(prog_name="txbroker")

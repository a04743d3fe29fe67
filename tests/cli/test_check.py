"""
`txbroker check`: one line a mistake on stderr, exit codes as documented.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.config.documents import ROOT
from txbroker import __version__
from txbroker.cli import main

EDGE = """\
node: edge
parent: 127.0.0.1:7001
mqtt: [tcp:1884:interface=127.0.0.1]
grpc: 127.0.0.1:7002
data: var/edge
"""


def txbroker(*arguments: object) -> Result:
    """The command, as if typed."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_good_files_get_one_line(tmp_path: Path) -> None:
    """Nodes and zones are counted over all files."""
    house, edge = tmp_path / "house.yaml", tmp_path / "edge.yaml"
    house.write_text(ROOT)
    edge.write_text(EDGE)

    done = txbroker("check", house, edge)

    assert (0, "ok: 2 nodes, 1 zone\n", "") == (done.exit_code, done.stdout, done.stderr)


def test_each_mistake_gets_a_line_and_status_1(tmp_path: Path) -> None:
    """All of them, on stderr; nothing on stdout."""
    file = tmp_path / "site.yaml"
    file.write_text(ROOT.replace("house", "a b") + "---\n" + EDGE.replace("grpc", "grcp"))

    done = txbroker("check", file, tmp_path / "missing.yaml")

    lines = done.stderr.splitlines()
    assert (1, "", 3) == (done.exit_code, done.stdout, len(lines))
    assert lines[0].startswith(f"{file}:1: node: 'a b': ")
    assert lines[1].startswith(f"{file}:10: grcp: ") and lines[1].endswith("did you mean grpc?")
    assert lines[2].startswith(f"{tmp_path / 'missing.yaml'}: cannot be read")


def test_mistakes_between_files_are_found(tmp_path: Path) -> None:
    """The files are checked together."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(ROOT)
    second.write_text(EDGE.replace("tcp:1884", "tcp:1883"))

    done = txbroker("check", first, second)

    assert 1 == done.exit_code and "port 1883 is already mqtt of node house" in done.stderr


def test_the_example_house_is_fine() -> None:
    """The files of examples/home_topology, together."""
    folder = Path(__file__).resolve().parents[2] / "examples" / "home_topology"

    done = txbroker("check", *sorted(folder.glob("*.yaml")))

    assert (0, "ok: 6 nodes, 6 zones\n") == (done.exit_code, done.stdout)


@pytest.mark.parametrize("arguments", [[], ["--no-such"], ["no-such"], ["check"], ["run"]])
def test_wrong_usage_is_status_2(arguments: list[str]) -> None:
    """Also for a command without its files."""
    assert 2 == txbroker(*arguments).exit_code


def test_version() -> None:
    """Name and version on one line."""
    assert f"txbroker {__version__}\n" == txbroker("--version").stdout


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_shows_an_example(name: str) -> None:
    """`--help` says what the command does and how it is typed."""
    done = txbroker(name, "--help")

    assert 0 == done.exit_code
    assert f"$ txbroker {name}" in done.stdout


def test_data_that_others_can_read_is_told(tmp_path: Path) -> None:
    """Of an earlier version, or made by hand; the files are fine all the same."""
    house, data = tmp_path / "house.yaml", tmp_path / "var" / "house"
    house.write_text(ROOT)
    (data / "tables").mkdir(parents=True, mode=0o700)
    data.chmod(0o700)
    (data / "tables").chmod(0o750)
    (data / "state.json").write_text("{}")
    (data / "state.json").chmod(0o600)
    (data / "lock").write_text("")
    (data / "lock").chmod(0o644)

    done = txbroker("check", house)

    said = "other users of this machine have rights to 2 files; take them away with"
    assert (0, f"warning: {data}: {said}: chmod -R go= {data}\n") == (done.exit_code, done.stderr)
    for path in (data / "tables", data / "lock"):
        path.chmod(0o700)
    assert "" == txbroker("check", house).stderr

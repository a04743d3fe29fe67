"""
The whole demo as its users run it: run.py, six twistd processes, two paho clients.
"""

from __future__ import annotations

import csv
import os
import signal
import socket
from itertools import islice
from pathlib import Path

import pytest
from launching import ROOT, TIMEOUT, Start, finish
from readings import generated_source

DATA = Path(os.environ.get("TXBROKER_DATA", ROOT.parent / "shared" / "data"))
NINE_ROOMS = DATA / "home-9-rooms" / "energydata_complete.csv"
ZONES = ("(root)", "home/kitchen", "home/living", "home/upstairs", "home/outside")
ROWS = 300


def account(output: str) -> dict[str, list[int]]:
    """
    Zone → published, received, lost, duplicated, out of order, from the printed account.
    """
    lines = output.split("out of order\n")[-1].splitlines()
    return {
        line[:18].strip(): [int(figure) for figure in line.split()[-5:]]
        for line in lines
        if line[:18].strip() and line.split()[-1].isdecimal()
    }


@pytest.fixture(params=["generated", "real"])
def data_set(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """
    The first rows of the nine-room data set, and of a generated file in the same format.
    """
    path = tmp_path / "house.csv"
    if request.param == "real":
        if not NINE_ROOMS.exists():
            pytest.skip(f"no data set at {NINE_ROOMS}; TXBROKER_DATA names the folder it is in")
        with NINE_ROOMS.open(encoding="utf-8") as file:
            path.write_text("".join(islice(file, ROWS + 1)), encoding="utf-8")
        return path
    rows = list(islice(generated_source(seed=9).rows, ROWS))
    with path.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.timeout(TIMEOUT + 30)
def test_a_file_is_replayed_in_full_and_nothing_is_lost(
    start: Start, data_set: Path, base: int
) -> None:
    status, output, errors = finish(start("--csv", data_set, "--ports-base", base))

    assert status == 0, f"{output}\n{errors}"
    rooms = {
        "(root)": 2,
        "home/kitchen": 1,
        "home/living": 1,
        "home/upstairs": 4,
        "home/outside": 1,
    }
    expected = {zone: [2 * n * ROWS] * 2 + [0, 0, 0] for zone, n in rooms.items()}
    expected |= {"home/outside/cams": [0] * 5, "all zones": [18 * ROWS] * 2 + [0, 0, 0]}
    assert account(output) == expected


@pytest.mark.timeout(TIMEOUT + 30)
def test_the_demo_ends_after_the_given_time(start: Start, base: int) -> None:
    status, output, errors = finish(start("--seconds", 3, "--ports-base", base))

    assert status == 0, f"{output}\n{errors}"
    counts = account(output)
    published, received, lost, duplicated, disordered = counts["all zones"]
    assert (lost, duplicated, disordered) == (0, 0, 0)
    assert published == received > 100
    assert all(counts[zone][0] > 0 for zone in (*ZONES, "home/outside/cams"))
    seen = counts["home/outside/cams"][1]
    said = f"home/outside/cams: a client of MQTT 5.0 got {seen} readings, {seen} with an expiry"
    assert said in output
    for zone in (*ZONES[1:], "home/outside/cams"):
        assert zone in output.split("$ txbroker tree")[1].split("replay through")[0]


@pytest.mark.timeout(TIMEOUT + 30)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demo_in_good_order(
    start: Start, base: int, number: signal.Signals
) -> None:
    process = start("--ports-base", base)
    assert process.stdout is not None
    for line in process.stdout:  # until readings flow
        if "received" in line and "received 0" not in line:
            break
    process.send_signal(number)
    status, output, errors = finish(process)

    assert status == 0, f"{output}\n{errors}"
    published, received, lost, *_ = account(output)["all zones"]
    assert published == received > 0
    assert lost == 0


@pytest.mark.timeout(TIMEOUT + 30)
def test_a_port_in_use_is_one_line_and_leaves_nothing_running(start: Start, base: int) -> None:
    with socket.create_server(("127.0.0.1", base + 3)):
        status, output, errors = finish(start("--seconds", 3, "--ports-base", base))

    assert status == 1
    assert str(base + 3) in errors
    assert "upstairs" in errors
    assert "Traceback" not in output + errors


def test_a_bad_input_is_refused_before_a_node_is_started(start: Start, tmp_path: Path) -> None:
    status, output, errors = finish(start("--csv", tmp_path / "none.csv"))

    assert (status, output) == (1, "")
    assert errors == f"run.py: {tmp_path / 'none.csv'}: No such file or directory; " + (
        "give --csv a readable file\n"
    )


def test_a_topic_that_the_demo_would_not_see_is_refused(start: Start, tmp_path: Path) -> None:
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("time: date\ngroups: {garage: {T1: garage/temperature}}\n")
    status, output, errors = finish(start("--mapping", mapping))

    assert (status, output) == (1, "")
    assert errors == f"run.py: {mapping}: topic 'garage/temperature' must begin with home/\n"


def test_wrong_usage_is_status_2(start: Start) -> None:
    status, _, errors = finish(start("--rate", "fast"))

    assert status == 2
    assert "argument --rate: 'fast' is not a number above 0" in errors

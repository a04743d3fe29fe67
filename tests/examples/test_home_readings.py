"""
Sources of readings (generator, CSV), their payloads, and the mapping of columns to topics.
"""

from __future__ import annotations

import csv
from itertools import islice
from pathlib import Path

import pytest
from mapping import MappingError, load_mapping
from readings import Reading, SourceError, csv_source, decode, encode, generated_source

NINE_ROOMS = (
    Path(__file__).resolve().parents[2]
    / "examples"
    / "home_topology"
    / "mappings"
    / "nine-rooms.yaml"
)
ROOMS, METERS, WEATHER, CAMS = "rooms", "meters", "weather", "cams"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# payloads


def test_a_payload_is_compact_and_comes_back() -> None:
    reading = Reading(topic="home/kitchen/temperature", value=19.89, time="2016-01-11T17:00:00")
    payload = encode(reading, 7)

    assert payload == b'{"seq":7,"value":19.89,"time":"2016-01-11T17:00:00"}'
    assert decode("home/kitchen/temperature", payload) == (7, reading)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"on",
        b"\xff\xfe",
        b"[1]",
        b"7",
        b"{}",
        b'{"seq":"1","value":1,"time":""}',
        b'{"seq":true,"value":1,"time":""}',
        b'{"seq":1,"value":"warm","time":""}',
        b'{"seq":1,"value":1,"time":5}',
    ],
)
def test_a_payload_from_elsewhere_is_told_apart(payload: bytes) -> None:
    assert decode("home/kitchen/lamp", payload) is None


# the generator


def test_the_same_seed_gives_the_same_house() -> None:
    first, again, other = (list(islice(generated_source(seed).rows, 50)) for seed in (3, 3, 4))

    assert first == again
    assert first != other


def test_generated_rows_have_all_columns_of_the_mapping() -> None:
    source = generated_source()
    mapping = load_mapping(NINE_ROOMS)
    readings = list(islice(mapping.readings(source, tuple(mapping.groups)), 28))

    assert len({reading.topic for reading in readings}) == 28
    assert {reading.time for reading in readings} == {"2024-01-15T00:00:00"}


def test_generated_values_are_plausible_for_a_month() -> None:
    for row in islice(generated_source().rows, 30 * 144):
        for number in range(1, 10):
            low, high = (-15, 30) if number == 6 else (14, 28)

            assert low < float(row[f"T{number}"]) < high
            assert 1 <= float(row[f"RH_{number}"]) <= 99.9


def test_generated_days_have_a_curve() -> None:
    """
    Outside, the mean of all afternoons is degrees above the mean of all small hours.
    """
    rows = list(islice(generated_source().rows, 14 * 144))
    at = {
        hour: [float(row["T6"]) for row in rows if row["date"].endswith(f" {hour}:00")]
        for hour in (3, 15)
    }

    assert len(at[3]) == len(at[15]) == 14
    assert sum(at[15]) / 14 - sum(at[3]) / 14 > 5


# files


def test_a_csv_row_becomes_readings_in_the_order_of_the_mapping(tmp_path: Path) -> None:
    mapping = load_mapping(
        write(tmp_path / "m.yaml", "time: t\ngroups: {all: {B: home/b, A: home/a}}\n")
    )
    source = csv_source(write(tmp_path / "d.csv", "t,A,B,C\nnoon,1,2.50,3\nlater,4,6.60E+00,6"))

    expected = [
        Reading(topic="home/b", value=2.5, time="noon"),
        Reading(topic="home/a", value=1.0, time="noon"),
        Reading(topic="home/b", value=6.6, time="later"),
        Reading(topic="home/a", value=4.0, time="later"),
    ]

    assert list(mapping.readings(source, ["all"])) == expected


def test_times_are_read_in_the_forms_that_the_mapping_announces(tmp_path: Path) -> None:
    mapping = load_mapping(NINE_ROOMS)
    header = "date," + ",".join(mapping.groups[METERS])
    rows = "2016/1/11 17:00,1,2\n2016-01-11 17:10:00,1,2\nnoon,1,2\n"
    readings = mapping.readings(
        csv_source(write(tmp_path / "d.csv", f"{header}\n{rows}")), [METERS]
    )

    expected = ["2016-01-11T17:00:00", "2016-01-11T17:10:00", "noon"]

    assert [reading.time for reading in readings][::2] == expected


@pytest.mark.parametrize("cell", ["", "NA", "nan", "inf", "?"])
def test_a_cell_without_a_number_is_passed_over(tmp_path: Path, cell: str) -> None:
    mapping = load_mapping(
        write(tmp_path / "m.yaml", "time: t\ngroups: {all: {A: home/a, B: home/b}}\n")
    )
    source = csv_source(write(tmp_path / "d.csv", f"t,A,B\n1,{cell},5\n2\n"))

    assert [r.topic for r in mapping.readings(source, ["all"])] == ["home/b"]


def test_a_generated_file_reads_like_the_generator(tmp_path: Path) -> None:
    mapping = load_mapping(NINE_ROOMS)
    rows = list(islice(generated_source().rows, 20))
    with (tmp_path / "house.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    from_file = list(mapping.readings(csv_source(tmp_path / "house.csv"), mapping.default))

    assert len(from_file) == 20 * 18
    assert from_file == list(
        islice(mapping.readings(generated_source(), mapping.default), len(from_file))
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file"), (b"", "empty"), (b"a,b\xff\n1,2\n", "not a CSV file")],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "d.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        csv_source(path)

    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert said in text
    assert "\n" not in text


# the mapping


def test_the_nine_rooms_are_18_readings_a_row_and_26_with_meters_and_weather() -> None:
    mapping, source = load_mapping(NINE_ROOMS), generated_source()

    assert mapping.default == (ROOMS,)
    assert len(mapping.select([ROOMS], source)) == 18
    assert len(mapping.select([ROOMS, METERS, WEATHER], source)) == 26
    assert len(mapping.select([CAMS], source)) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "must hold the keys"),
        ("groups: {", "not YAML"),
        ("time: t\ngroups: {}\ntimes: x\n", "unknown key 'times'"),
        ("time: t\ngroups: [a]\n", "groups: must map"),
        ("time: t\n", "groups: must map"),
        ("time: 5\ngroups: {}\n", "time: [5] must be text"),
        ("time: t\ngroups: {g: {A: home/#}}\n", "groups: g: A: 'home/#' is no topic"),
        ("time: t\ngroups: {g: {A: 7}}\n", "7 is no topic"),
        ("time: t\ngroups: {g: {A: x, B: x}}\n", "groups: g: B: x is taken by A"),
        ("time: t\ngroups: {g: {A: x}}\ndefault: [h]\n", "default: no group 'h'"),
        ("time: t\ngroups: {g: {A: x}}\ndefault: g\n", "default: 'g' must be text"),
    ],
)
def test_a_bad_mapping_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path / "m.yaml", text)
    with pytest.raises(MappingError) as caught:
        load_mapping(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_group_or_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    mapping = load_mapping(NINE_ROOMS)
    source = csv_source(write(tmp_path / "d.csv", "date,T1\n2016/1/11 17:00,20\n"))

    with pytest.raises(MappingError, match="no group 'attic'; choose from rooms, meters"):
        mapping.readings(source, ["attic"])
    with pytest.raises(MappingError, match=r"column 'RH_1' is not in d\.csv"):
        mapping.readings(source, [ROOMS])

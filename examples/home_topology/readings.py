"""
Where the demo's readings come from: a CSV file, or a generator of a plausible house.

Both give a `Source`: the names of the columns and rows of text cells. So everything behind it
(mapping, replay) cannot tell one from the other. This module also decides what one reading looks
like as an MQTT payload.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import attrs

Row = Mapping[str, str]

STEP = timedelta(minutes=10)
EPOCH = datetime(2024, 1, 15, 0, 0)  # any winter's day would do; fixed, so that runs compare


class SourceError(ValueError):
    """
    The rows cannot be read; the text is one line that names the file and the cause.
    """


@attrs.frozen(kw_only=True, slots=True)
class Source:
    """
    Rows of text cells, read lazily and once, with the columns that every row has.
    """

    name: str
    columns: tuple[str, ...]
    rows: Iterator[Row]


@attrs.frozen(kw_only=True, slots=True)
class Reading:
    """
    A value on its way to one topic; `time` is ISO 8601 as far as the source gave it.
    """

    topic: str
    value: float
    time: str


def encode(reading: Reading, seq: int) -> bytes:
    """
    The payload of a reading: compact JSON with the topic's sequence number, counted from 1.
    """
    body = {"seq": seq, "value": reading.value, "time": reading.time}
    return json.dumps(body, separators=(",", ":")).encode()


def decode(topic: str, payload: bytes | bytearray) -> tuple[int, Reading] | None:
    """
    The sequence number and reading of a payload, None if it is not one that `encode` made.
    """
    try:
        body = json.loads(payload)
        seq, value, time = body["seq"], body["value"], body["time"]
    except (ValueError, TypeError, KeyError):  # ValueError: neither UTF-8 nor JSON
        return None
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if type(seq) is not int or not numeric or not isinstance(time, str):
        return None
    return seq, Reading(topic=topic, value=value, time=time)


def csv_source(path: Path) -> Source:
    """
    The rows of a CSV file with a header line. SourceError, here or while the rows are read, if
    the file is not there, empty, or no text.
    """
    with _readable(path), path.open(newline="", encoding="utf-8-sig") as file:
        columns = next(csv.reader(file), [])
    if not columns:
        raise SourceError(f"{path}: empty; its first line must name the columns")

    def rows() -> Iterator[Row]:
        with _readable(path), path.open(newline="", encoding="utf-8-sig") as file:
            yield from csv.DictReader(file)

    return Source(name=path.name, columns=tuple(columns), rows=rows())


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}; give --csv a readable file") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: not a CSV file in UTF-8: {error}") from error


@attrs.frozen(kw_only=True, slots=True)
class _Climate:
    """
    A room's climate: mean and daily swing in degC, hour of the peak, mean humidity in %.
    """

    mean: float
    swing: float
    peak: float
    humidity: float


# In the order of the data set's columns T1..T9, so that generated rows have its names.
_ROOMS = (
    _Climate(mean=21.5, swing=1.2, peak=19, humidity=41),  # kitchen: warm when dinner is made
    _Climate(mean=20.5, swing=1.5, peak=20, humidity=40),  # living
    _Climate(mean=22.0, swing=0.8, peak=14, humidity=42),  # laundry
    _Climate(mean=20.5, swing=1.4, peak=16, humidity=39),  # office
    _Climate(mean=20.0, swing=0.9, peak=7, humidity=55),  # bath: showers in the morning
    _Climate(mean=6.0, swing=4.5, peak=15, humidity=72),  # outside
    _Climate(mean=20.0, swing=0.7, peak=17, humidity=36),  # ironing
    _Climate(mean=21.5, swing=1.1, peak=21, humidity=43),  # teen
    _Climate(mean=19.0, swing=0.8, peak=22, humidity=42),  # parents
)


class _Drift:
    """
    Noise that wanders and comes back: each step keeps most of the last one's deviation.
    """

    def __init__(self, rng: random.Random, size: float) -> None:
        self._rng = rng
        self._size = size
        self._value = 0.0

    def step(self) -> float:
        self._value = 0.95 * self._value + self._rng.gauss(0, self._size)
        return self._value


def generated_source(seed: int = 1, start: datetime = EPOCH) -> Source:
    """
    An endless house: the columns of the nine-room data set and two cameras, a row every ten
    minutes from `start`. The same seed gives the same rows.
    """
    rows = _generate(random.Random(seed), start)
    first = next(rows)

    def all_rows() -> Iterator[Row]:
        yield first
        yield from rows

    return Source(name=f"generated house, seed {seed}", columns=tuple(first), rows=all_rows())


def _generate(rng: random.Random, start: datetime) -> Iterator[Row]:
    rooms = [(climate, _Drift(rng, 0.08), _Drift(rng, 0.4)) for climate in _ROOMS]
    weather = {"pressure": _Drift(rng, 0.5), "wind": _Drift(rng, 0.4), "front": _Drift(rng, 0.15)}
    time = start
    while True:
        hour = time.hour + time.minute / 60
        row = {"date": f"{time.year}/{time.month}/{time.day} {time.hour}:{time.minute:02}"}
        row |= _meters(rng, hour)
        for number, (climate, warmth, damp) in enumerate(rooms, start=1):
            temperature = climate.mean + climate.swing * _daily(hour, climate.peak) + warmth.step()
            humidity = climate.humidity - 2.5 * (temperature - climate.mean) + damp.step()
            row[f"T{number}"] = f"{temperature:.2f}"
            row[f"RH_{number}"] = f"{min(max(humidity, 1.0), 99.9):.2f}"
        row |= _weather(hour, {name: drift.step() for name, drift in weather.items()})
        row |= _motion(rng, hour)
        yield row
        time += STEP


def _daily(hour: float, peak: float) -> float:
    """
    A day's curve between -1 and 1 with its top at `peak`.
    """
    return math.cos((hour - peak) / 24 * 2 * math.pi)


def _awake(hour: float) -> float:
    return max(0.1, (1 + _daily(hour, 17)) / 2)


def _meters(rng: random.Random, hour: float) -> dict[str, str]:
    lit = 10 * rng.randint(0, 4) if hour >= 17 or hour < 1 else 0
    appliances = 40 + 10 * round(rng.expovariate(0.15) * _awake(hour))
    return {"Appliances": str(min(appliances, 1080)), "lights": str(lit)}


def _weather(hour: float, drift: Mapping[str, float]) -> dict[str, str]:
    temperature = 5.5 + 4 * _daily(hour, 15) + drift["front"]
    humidity = min(max(80 - 4 * (temperature - 5.5), 24), 100)
    return {
        "T_out": f"{temperature:.2f}",
        "Press_mm_hg": f"{755 + drift['pressure']:.1f}",
        "RH_out": f"{humidity:.1f}",
        "Windspeed": f"{max(0.0, 4 + drift['wind'] + _daily(hour, 14)):.2f}",
        "Visibility": f"{min(max(40 + 8 * drift['front'], 1), 66):.1f}",
        "Tdewpoint": f"{temperature - (100 - humidity) / 5:.2f}",
    }


def _motion(rng: random.Random, hour: float) -> dict[str, str]:
    return {
        "motion_gate": str(rng.randint(0, round(6 * _awake(hour)))),
        "motion_garden": str(rng.randint(0, round(3 * _awake(hour)))),
    }

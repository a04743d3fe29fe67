"""The clauses of MQTT 5.0 for rules that readers of all levels name by MQTT 3.1.1. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from txbroker.mqtt.wire.return_codes import ProtocolViolation

_P = ParamSpec("_P")
_R = TypeVar("_R")

_CLAUSES: Final = {
    "section 2.2.1": "section 2.1.2",
    "section 2.2.3": "section 2.1.4",
    "MQTT-1.5.3-1": "MQTT-1.5.4-1",
    "MQTT-1.5.3-2": "MQTT-1.5.4-2",
    "MQTT-2.2.2-2": "MQTT-2.1.3-1",
    "MQTT-2.3.1-1": "MQTT-2.2.1-3",
    "MQTT-3.1.2-13": "MQTT-3.1.2-11",
    "MQTT-3.1.2-14": "MQTT-3.1.2-12",
    "MQTT-3.1.2-15": "MQTT-3.1.2-13",
    "MQTT-4.7.1-1": "MQTT-4.7.0-1",
    "MQTT-4.7.1-2": "MQTT-4.7.1-1",
    "MQTT-4.7.1-3": "MQTT-4.7.1-2",
}
"""Other clauses have one number in both texts, or only readers of level 5 name them."""


def names_level_5(read: Callable[_P, _R]) -> Callable[_P, _R]:
    """
    Decorate a reader of level 5: its violations name the clauses of MQTT 5.0.

    Some numbers are of both texts, so no reader that raises these may be decorated twice.
    """

    @wraps(read)
    def reader(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return read(*args, **kwargs)
        except ProtocolViolation as violation:
            rule = _CLAUSES.get(violation.rule)
            if rule is None:
                raise
            raise ProtocolViolation(
                rule, violation.reason, violation.connack, reason_code=violation.reason_code
            ) from None

    return reader

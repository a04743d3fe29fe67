"""
The hooks that read each kind of value in a topology file from YAML's value.

The module has one cattrs hook for each kind of value. A hook raises `BadValue`; the reader adds the
file, line and key. YAML, files, and rules for more than one key are elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, get_args

import cattrs

from txbroker.config.endpoints import BadEndpoint, parse_endpoint
from txbroker.config.values import (
    DAY,
    GIB,
    KIB,
    MIB,
    Address,
    Apex,
    Count,
    Durability,
    Endpoint,
    Flag,
    Host,
    Interval,
    Journaled,
    NodeName,
    ReserveSize,
    Seconds,
    SiteName,
    Size,
    Timeout,
    TopicFilter,
    WhenUnknown,
    WhenUnreachable,
)
from txbroker.model.topics import TopicError, is_sys, validate_apex, validate_topic_filter

MAX_PORT = 65_535
MAX_RESERVE = 0.9
MAX_NAME_BYTES = 255
MAX_INTERVAL = 0xFFFFFFFF


class BadValue(ValueError):
    """A value breaks a rule of its own; `value` is the offending part of it."""

    def __init__(self, value: object, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.value = value
        self.problem = problem
        self.remedy = remedy


# -- text


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise BadValue(value, f"{kind(value)} where text belongs", "put it in quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadValue(value, "not valid Unicode", "write the characters themselves") from None
    return value


def kind(value: object) -> str:
    """Return the kind of YAML's value in an operator's words."""
    if value is None:
        return "nothing"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    names |= {list: "a list", dict: "a mapping"}
    return names.get(type(value), f"a {type(value).__name__}")


def _printable(text: str) -> bool:
    # The space is the only white space that counts as printable.
    return text.isprintable() and " " not in text


def _node_name(value: object, _: object = None) -> str:
    return _name(value, "give the node a name that is unique in the tree")


def _site_name(value: object, _: object = None) -> str:
    return _name(value, "give the site a name, or leave the key out where there is one site")


def _name(value: object, remedy: str) -> str:
    name = _text(value)
    if not name:
        raise BadValue(name, "an empty name", remedy)
    if not _printable(name) or set(name) & set("/+#"):
        problem = "such a name stands in topics"
        raise BadValue(name, problem, "leave out spaces, control characters and / + #")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise BadValue(name, f"longer than {MAX_NAME_BYTES} bytes", "choose a shorter name")
    return name


def _apex(value: object, _: object = None) -> str:
    apex = _text(value)
    if set(apex) & set("+#"):
        problem = "a wildcard in a zone"
        raise BadValue(apex, problem, "name one subtree, such as home/kitchen, without + and #")
    if apex.startswith("/") or apex.endswith("/"):
        raise BadValue(
            apex, "a slash at the start or the end of a zone", f"write {apex.strip('/')!r}"
        )
    if "//" in apex:
        problem = "an empty level in a zone"
        raise BadValue(apex, problem, f"write {re.sub('//+', '/', apex)!r}")
    try:
        validate_apex(apex)
    except TopicError as error:
        problem = str(error).rstrip(".")
        raise BadValue(apex, problem, "choose another topic as the zone's apex") from None
    return apex


def _topic_filter(value: object, _: object = None) -> str:
    topic_filter = _text(value)
    try:
        validate_topic_filter(topic_filter)
    except TopicError as error:
        remedy = "write a topic filter such as home/+/motion"
        raise BadValue(topic_filter, str(error).rstrip("."), remedy) from None
    if is_sys(topic_filter):
        problem = "each node has its own $SYS topics"
        raise BadValue(topic_filter, problem, "name topics of the zone")
    return topic_filter


def _path(value: object, _: object = None) -> Path:
    text = _text(value)
    if not text or "\0" in text:
        problem = "not the name of a directory"
        raise BadValue(text, problem, "name one for the durable store, such as var/kitchen")
    return Path(text)


# -- addresses


def _host(value: object, _: object = None) -> str:
    host = _text(value)
    if host.startswith("[") and host.endswith("]"):
        return _ipv6(host[1:-1], host)
    if ":" in host:
        remedy = "name the host alone, without a port, and an IPv6 address in brackets"
        raise BadValue(host, "not a host", remedy)
    return _name_or_ipv4(host, host)


def _ipv6(text: str, whole: str) -> str:
    try:
        return str(IPv6Address(text))
    except AddressValueError:
        problem = f"{text!r} is not an IPv6 address"
        raise BadValue(whole, problem, "brackets are for IPv6 only, as in [::1]:7001") from None


def _name_or_ipv4(text: str, whole: str) -> str:
    if not text or not _printable(text) or set(text) & set("/[]@?#"):
        remedy = "write a name or an IP address, such as 127.0.0.1"
        raise BadValue(whole, "no valid host in it", remedy)
    if re.fullmatch(r"[0-9.]+", text):
        try:
            IPv4Address(text)
        except AddressValueError:
            problem = f"{text!r} is not an IPv4 address"
            raise BadValue(whole, problem, "write four numbers from 0 to 255") from None
    return text


def parse_address(text: str) -> Address:
    """
    Parse `host:port` or `[IPv6]:port`; port 0 means a free port.

    Raises `BadValue` (a ValueError) with problem and remedy.
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        raise BadValue(text, "no port in it", "write host:port, such as 127.0.0.1:7001")
    if ":" in host and not host.startswith("["):
        remedy = "put an IPv6 address in brackets, as in [::1]:7001"
        raise BadValue(text, "more than one colon", remedy)
    if not re.fullmatch("[0-9]{1,9}", port) or int(port) > MAX_PORT:
        problem = f"{port!r} is not a port"
        raise BadValue(text, problem, f"ports go from 1 to {MAX_PORT}, 0 takes a free one")
    if host.startswith("[") and host.endswith("]"):
        return Address(_ipv6(host[1:-1], text), int(port))
    return Address(_name_or_ipv4(host, text), int(port))


def _address(value: object, _: object = None) -> Address:
    if not isinstance(value, str):
        remedy = 'write "host:port" in quotes, such as "127.0.0.1:7001"'
        raise BadValue(value, f"{kind(value)} where an address belongs", remedy)
    return parse_address(_text(value))


def _endpoint(value: object, _: object = None) -> str:
    text = _text(value)
    try:
        parse_endpoint(text)
    except BadEndpoint as error:
        raise BadValue(text, str(error), error.remedy) from None
    return text


def _endpoints(value: object, _: object = None) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        remedy = "write one or more in brackets, such as [tcp:1883]"
        raise BadValue(value, "not a list of endpoint descriptions", remedy)
    return tuple(_endpoint(item) for item in value)


def _topic_filters(value: object, _: object = None) -> tuple[str, ...]:
    if not isinstance(value, list):
        remedy = "write filters in brackets, such as [home/+/motion]"
        raise BadValue(value, f"{kind(value)} where a list belongs", remedy)
    return tuple(_topic_filter(item) for item in value)


# -- quantities

_SIZES = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_TIMES = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY}


def _size(value: object, _: object = None) -> int:
    remedy = "write a number of bytes, or with a unit as in 512KiB, 16MiB, 1GiB"
    text = str(value) if type(value) is int and abs(value) < 1 << 63 else value
    found = re.fullmatch(r"([0-9]{1,18}) ?([A-Za-z]*)", text) if isinstance(text, str) else None
    if found is None or found[2] not in _SIZES:
        raise BadValue(value, "not a size", remedy)
    size = int(found[1]) * _SIZES[found[2]]
    if size == 0:
        raise BadValue(value, "a limit of nothing", remedy)
    return size


def _seconds(value: object, _: object = None) -> float:
    remedy = "write a number with a unit, as in 500ms, 10s, 5m, 1h, 7d"
    # A plain 7 would count as seconds, and may be meant as days.
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise BadValue(value, "not a time: a number without a unit", remedy)
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?([a-z]+)", str(value))
    if not isinstance(value, str) or found is None or found[2] not in _TIMES:
        raise BadValue(value, "not a time", remedy)
    return float(found[1]) * _TIMES[found[2]]


def _timeout(value: object, _: object = None) -> float:
    seconds = _seconds(value)
    if seconds == 0:
        raise BadValue(value, "a limit of nothing", "write a time above 0, as in 500ms, 10s, 5m")
    return seconds


def _interval(value: object, _: object = None) -> int:
    seconds = math.ceil(_timeout(value))
    if seconds > MAX_INTERVAL:
        raise BadValue(value, "MQTT has four bytes of seconds for it", "write at most 136 years")
    return seconds


def _count(value: object, _: object = None) -> int:
    if type(value) is not int or value < 1:
        raise BadValue(value, "not a whole number above 0", "write one, such as 1000")
    if value >= 1 << 63:
        raise BadValue(value, "more than a node can count", f"write at most {(1 << 63) - 1}")
    return value


def _flag(value: object, _: object = None) -> bool:
    if not isinstance(value, bool):
        raise BadValue(value, f"{kind(value)} where true or false belongs", "write true or false")
    return value


def _reserve(value: object, _: object = None) -> ReserveSize:
    remedy = "write a share of the disk or a size with its unit, as in 5%, 512MiB; 0% for none"
    # A plain 5 would count as bytes, and may be meant as a percentage.
    if not isinstance(value, str):
        raise BadValue(value, "neither a percentage nor a size", remedy)
    found = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,6})?) ?%", value)
    if found is None:
        return ReserveSize(size=_size(value))
    share = float(found[1]) / 100
    if share > MAX_RESERVE:
        raise BadValue(value, "leaves too little of the disk", f"write at most {MAX_RESERVE:.0%}")
    return ReserveSize(share=share)


_CHOICES = (Durability, Journaled, WhenUnreachable, WhenUnknown)


def _choice(value: object, target: Any) -> object:
    options = get_args(target)
    if value not in options:
        raise BadValue(value, "not one of its values", f"write one of: {', '.join(options)}")
    return value


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    hooks: dict[Any, Callable[[object, object], object]] = {
        Size: _size,
        Seconds: _seconds,
        Timeout: _timeout,
        Count: _count,
        Flag: _flag,
        Apex: _apex,
        TopicFilter: _topic_filter,
        Interval: _interval,
        NodeName: _node_name,
        SiteName: _site_name,
        ReserveSize: _reserve,
        Host: _host,
        Path: _path,
        Address: _address,
    }
    for target, hook in hooks.items():
        converter.register_structure_hook(target, hook)
    converter.register_structure_hook_func(
        lambda target: bool(target == tuple[Endpoint, ...]), _endpoints
    )
    converter.register_structure_hook_func(
        lambda target: bool(target == tuple[TopicFilter, ...]), _topic_filters
    )
    converter.register_structure_hook_func(_CHOICES.__contains__, _choice)
    return converter


CONVERTER = _converter()
"""Structures one value of a key; raises `BadValue`."""

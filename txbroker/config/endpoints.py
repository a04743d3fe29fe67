"""
The port or path that a Twisted endpoint description would bind, without binding it.

Twisted's own parser reads the description. The endpoint then listens on a reactor that only records
the request. So txbroker reads a description as Twisted does, plug-ins and escapes included.
"""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory

_SCHEMES = ("tcp", "tcp6", "ssl", "unix")
_REMEDY = "write one such as tcp:1883:interface=127.0.0.1"


class BadEndpoint(ValueError):
    """An endpoint description is unusable; the message has the reason, `remedy` what to write."""

    def __init__(self, reason: str, remedy: str = _REMEDY) -> None:
        super().__init__(reason)
        self.remedy = remedy


@attrs.frozen(slots=True, kw_only=True)
class Listener:
    """The result of a bind: `interface` ("" for all) and `port`, or the `path` of a socket."""

    interface: str = ""
    port: int = 0
    path: str = ""


class _Notes:
    """The stand-in for a reactor, with a record of the three calls that endpoints make."""

    def __init__(self) -> None:
        self.listeners: list[Listener] = []

    def listenTCP(self, port: int, _: object, backlog: int = 50, interface: str = "") -> None:
        self.listeners.append(Listener(interface=interface, port=port))

    def listenSSL(self, port: int, _: object, interface: str = "", **_options: Any) -> None:
        self.listeners.append(Listener(interface=interface, port=port))

    def listenUNIX(self, address: str, _: object, **_options: Any) -> None:
        self.listeners.append(Listener(path=address))


def parse_endpoint(description: str) -> Listener:
    """
    Return the listener that `description` would bind; raises `BadEndpoint`.

    The call reads a certificate that `ssl:` names, so a missing one is reported as well.
    """
    scheme = description.partition(":")[0]
    if scheme not in _SCHEMES:
        raise BadEndpoint(f"{scheme!r} is not one of {', '.join(_SCHEMES)}")
    notes = _Notes()
    try:
        # Parsers and the files that they read raise errors of any class: all mean a bad
        # description.
        endpoint = serverFromString(notes, description)
        endpoint.listen(Factory())
    except OSError as error:
        remedy = "name a file that this user can read, or a full path to it"
        raise BadEndpoint(f"cannot read {error.filename!r} ({error.strerror})", remedy) from error
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise BadEndpoint(f"not an endpoint description ({reason})") from error
    if not notes.listeners:
        raise BadEndpoint("not an endpoint description")
    listener = notes.listeners[0]
    if not 0 <= listener.port <= 65_535:
        raise BadEndpoint(f"{listener.port} is not a port")
    return listener

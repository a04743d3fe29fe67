"""
What a Twisted endpoint description would bind, found out without binding it.

Twisted's own parser reads the description; the endpoint is then asked to listen on a reactor that
only writes down what it was asked for. So our idea of a description is Twisted's, plug-ins and
escapes included.
"""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory

_SCHEMES = ("tcp", "tcp6", "ssl", "unix")


class BadEndpoint(ValueError):
    """
    An endpoint description cannot be used; the message says why.
    """


@attrs.frozen(slots=True, kw_only=True)
class Listener:
    """
    What an endpoint binds: `interface` ("" for all of them) and `port`, or the `path` of a socket.
    """

    interface: str = ""
    port: int = 0
    path: str = ""


class _Notes:
    """
    Stands in for the reactor: the three calls that our endpoints make, written down.
    """

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
    Say what `description` would bind; raises `BadEndpoint`.

    A certificate that `ssl:` names is read here, so a missing one is told as well.
    """
    scheme = description.partition(":")[0]
    if scheme not in _SCHEMES:
        raise BadEndpoint(f"{scheme!r} is not one of {', '.join(_SCHEMES)}")
    notes = _Notes()
    try:
        # The parsers and the files they read raise what they like, and all of it means this.
        endpoint = serverFromString(notes, description)
        endpoint.listen(Factory())
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise BadEndpoint(f"not an endpoint description ({reason})") from error
    if not notes.listeners:
        raise BadEndpoint("not an endpoint description")
    listener = notes.listeners[0]
    if not 0 <= listener.port <= 65_535:
        raise BadEndpoint(f"{listener.port} is not a port")
    return listener

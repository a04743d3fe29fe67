"""SHELL: binds a node's listening sockets; a bind failure becomes one line for the operator."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint, serverFromString

from txbroker.config import Address, NodeConfig
from txbroker.model.errors import ConfigError

ANYWHERE = ("0.0.0.0", "::")
"""Wildcard addresses of a machine, which no peer can dial."""

REMEDY = "stop what uses the address, or choose another one"


class Listeners:
    """
    The TCP listeners of one node; every method that binds raises `ConfigError`.

    `clients_at` (host:port) is the address for MQTT clients of other machines without TLS, or "".
    """

    def __init__(self, config: NodeConfig, reactor: Any) -> None:
        self.mqtt: list[str] = []
        self.link = ""
        self.clients_at = ""
        self._config = config
        self._reactor = reactor
        self._ports: list[Any] = []

    async def for_clients(self, factory: Any) -> None:
        """Bind every MQTT endpoint of the topology file."""
        for description in self._config.mqtt:
            endpoint = serverFromString(self._reactor, description)
            host = (await self._bind(endpoint, factory, "mqtt", description)).getHost()
            is_network = hasattr(host, "port")
            bound = str(Address(host.host, host.port)) if is_network else description
            self.mqtt.append(bound)
            if is_network and description.startswith("tcp") and not self.clients_at:
                at = self._config.dial_host if host.host in ANYWHERE else host.host
                self.clients_at = str(Address(at, host.port))

    async def for_links(self, factory: Any) -> None:
        """Bind the link address; by default a free port on the host of `grpc`."""
        config = self._config
        where = config.link or Address(config.grpc.host, 0)
        family, resolved = await self._resolve(where.host)
        endpoint_type = TCP6ServerEndpoint if family == socket.AF_INET6 else TCP4ServerEndpoint
        endpoint = endpoint_type(self._reactor, where.port, interface=resolved)
        port = (await self._bind(endpoint, factory, "link", str(where))).getHost().port
        self.link = str(Address(config.advertise or where.host, port))

    def cannot_bind(self, key: str, value: str, error: Exception | None = None) -> ConfigError:
        """Return the error for an address that cannot be bound, as one line."""
        cause = getattr(error, "socketError", None) or error
        problem = getattr(cause, "strerror", None) or "the address cannot be bound"
        return self._config.error(key, value, problem, REMEDY)

    async def close(self) -> None:
        """Stop listening."""
        loop = asyncio.get_running_loop()
        for port in self._ports:
            stopped = port.stopListening()
            if stopped is not None:
                await stopped.asFuture(loop)

    async def _bind(self, endpoint: Any, factory: Any, key: str, value: str) -> Any:
        try:
            port = await endpoint.listen(factory).asFuture(asyncio.get_running_loop())
        except Exception as error:
            raise self.cannot_bind(key, value, error) from error
        self._ports.append(port)
        return port

    async def _resolve(self, host: str) -> tuple[int, str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise self.cannot_bind("link", host, error) from error
        family, _, _, _, address = found[0]
        return family, str(address[0])

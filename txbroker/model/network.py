"""
The network of a peer: the peers that share one turn, or one limit, with it.

Whoever has an IPv6 host has 2**64 addresses of its network. With a turn for each address, one host
would take the turns of all others. An IPv4 host is a network by itself.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address
from typing import Final

SHARED: Final = 64
"""Bits of an IPv6 address that differ within a network."""


def network_of(host: str) -> str:
    """Return the network of a host; a text that is no IPv6 address is its own network."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except AddressValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> SHARED << SHARED))

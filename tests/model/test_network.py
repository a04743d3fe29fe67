"""Which peers share their turns and limits."""

from __future__ import annotations

import pytest

from txbroker.model.network import network_of


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::", "2001:db8:1:2::"),
        ("2001:db8:1:3::1", "2001:db8:1:3::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
        ("no:host", "no:host"),
    ],
)
def test_addresses_of_one_host_are_one_network(host: str, network: str) -> None:
    assert network_of(host) == network

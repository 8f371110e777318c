"""Which address Gloo listens at, and what is said of the hosts."""

from __future__ import annotations

import pytest

from fastcomm._distributed import gloo

BOTH = ["192.0.2.1", "2001:db8::1"]


def _place(network: str, addresses: list[str], chosen: str = "") -> gloo.Place:
    return gloo.Place(network, f"host-{network}", addresses, chosen)


@pytest.mark.parametrize(
    ("others", "address"),
    [
        (["192.0.2.2", "2001:db8::2"], "192.0.2.1"),
        (["192.0.2.2"], "192.0.2.1"),
        (["2001:db8::2"], "2001:db8::1"),  # what all have
        ([], "192.0.2.1"),
    ],
)
def test_all_ranks_take_addresses_of_one_family(others: list[str], address: str) -> None:
    assert gloo.own_address(0, [_place("a", BOTH), _place("b", others)]) == address


def test_an_interface_that_the_user_has_chosen_elsewhere_decides_on_the_family() -> None:
    places = [_place("a", BOTH), _place("b", ["2001:db8::2"], "eth0"), _place("c", ["192.0.2.3"])]
    assert gloo.own_address(0, places) == "2001:db8::1"
    places[1] = _place("b", [], "no interface")
    assert gloo.own_address(0, places) == "192.0.2.1"


def test_an_interface_that_no_other_host_reaches_gives_no_address() -> None:
    # Routes to 127.0.0.0/8 begin at loopback addresses, which no other host reaches.
    places = [_place("a", ["2001:db8::1"]), _place("b", ["127.0.0.1"], "lo")]
    assert gloo.own_address(0, places) is None


def test_addresses_of_an_interface() -> None:
    assert gloo.addresses_of("lo") == ["127.0.0.1"]
    assert gloo.addresses_of("no-such") == gloo.addresses_of("") == []
    assert gloo.addresses_of("a name that is longer than any") == []


def test_no_address_is_said_and_gloo_chooses() -> None:
    places = [_place("a", []), _place("a", []), _place("b", [])]
    assert gloo.own_address(0, places) is None
    assert "ranks 0, 1 on host-a; rank 2 on another host, host-b" in gloo.describe(places)
    assert "set GLOO_SOCKET_IFNAME" in gloo.interface_used(places, "")


def test_loopback_addresses_are_no_way() -> None:
    assert gloo.addresses_towards(["localhost", "127.0.1.1", "::1", "no such host"]) == []


def test_the_interface_that_the_user_has_chosen_is_said() -> None:
    places = [_place("a", BOTH, "eth7"), _place("b", BOTH)]
    assert "GLOO_SOCKET_IFNAME=eth7" in gloo.interface_used(places, "")

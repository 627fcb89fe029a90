"""Slots: how many requests each client may have at a time, of those of the whole process.

No client can take all, whatever it sends: who asks is known before any of the body is read.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from ipaddress import IPv6Address, ip_address

from terrine_server.serving import Limits

# Whoever has one IPv6 address usually has all of the same first 64 bits.
NETWORK_BITS = 64


class Share(StrEnum):
    """What is shared out."""

    ALL = "all"
    UNAUTHENTICATED = "unauthenticated"
    ADDRESS = "address"
    CLAIM = "claim"
    TOKEN = "token"  # noqa: S105 - not a password


class ConcurrencyLimit:
    """The slots of one process, counted by share. Belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        per_token = limits.per_token or max(1, limits.connections // 2)
        self.limits = {
            Share.ALL: limits.connections,
            Share.UNAUTHENTICATED: max(1, limits.connections // 2),
            Share.ADDRESS: max(1, limits.connections // 4),
            Share.CLAIM: per_token,
            Share.TOKEN: per_token,
        }
        self.taken: Counter[tuple[Share, str]] = Counter()

    def is_full(self, share: Share, owner: str) -> bool:
        """Whether this share of this owner has no slot left.

        A token whose limit is t of n slots takes at most t/n of those that others leave, so k of
        them leave (1 - t/n)^k. So switches share a buffer (Choudhury and Hahne 1998, "Dynamic queue
        length thresholds").
        """
        most, taken = self.limits[share], self.taken[share, owner]
        if share is not Share.TOKEN:
            return taken >= most
        slots = self.limits[Share.ALL]
        left = slots - self.taken[Share.ALL, ""] + taken
        return taken * slots >= most * left


class Slot:
    """The slot of a connection, which has at most one request in progress.

    `owner`: an address or a token's id, whichever is known of the client. Whatever takes the slot,
    or claims a part of it, gives back what it had; it returns the share that is full, if one is:
    then it counts nowhere.
    """

    def __init__(self) -> None:
        self.owner = ""
        self._slots: ConcurrencyLimit | None = None
        self._held: tuple[tuple[Share, str], ...] = ()

    @property
    def taken(self) -> bool:
        """Whether a request has it."""
        return (Share.ALL, "") in self._held

    def claim(self, slots: ConcurrencyLimit, address: str) -> Share | None:
        """Count a token that is being checked; it does not take the slot yet."""
        return self._count(slots, (Share.CLAIM, client_network(address)))

    def take_unauthenticated(self, slots: ConcurrencyLimit, address: str) -> Share | None:
        """Take it for a request without a valid token."""
        shares = (
            (Share.ALL, ""),
            (Share.UNAUTHENTICATED, ""),
            (Share.ADDRESS, client_network(address)),
        )
        return self._count(slots, *shares)

    def take_unchecked(self, slots: ConcurrencyLimit, address: str) -> Share | None:
        """Take it for a request whose token nobody can check now; it still counts as a claim."""
        return self._count(slots, (Share.ALL, ""), (Share.CLAIM, client_network(address)))

    def take_for_token(self, slots: ConcurrencyLimit, token_id: str) -> Share | None:
        """Take it for a request with a valid token, wherever it comes from."""
        return self._count(slots, (Share.ALL, ""), (Share.TOKEN, token_id))

    def leave(self) -> None:
        """Give the slot back."""
        for share in self._held:
            assert self._slots is not None  # noqa: S101 - it has been taken
            self._slots.taken[share] -= 1
            if not self._slots.taken[share]:
                del self._slots.taken[share]
        self._held = ()

    def _count(self, slots: ConcurrencyLimit, *shares: tuple[Share, str]) -> Share | None:
        self.leave()
        self.owner = shares[-1][1]
        for share in shares:
            if slots.is_full(*share):
                return share[0]
        self._slots, self._held = slots, shares
        slots.taken.update(shares)
        return None


def client_network(address: str) -> str:
    """Return the address that is counted for a client: of IPv6, the network of 64 bits."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Address(int(parsed) >> NETWORK_BITS << NETWORK_BITS))

"""Shares of the requests in progress: nobody can have them all.

A request has a slot from its head until its response is written. ConcurrencyLimit are limited in
total, by token, by address, and for all requests without a valid token together: unauthenticated
clients, who can never take the slots of students, however many addresses they have. The share of a
token is one of the slots that are left: colluding tokens cannot have them all either.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from ipaddress import IPv6Address, ip_address

from terrine_server.serving.limits import Limits

NETWORK_BITS = 64
"""Whoever has one IPv6 address usually has all of the same first 64 bits."""


class Share(StrEnum):
    """What a share is of, as the refusal of one more request calls it."""

    ALL = "Too many clients are connected."
    UNAUTHENTICATED = "Too many clients without a valid token are connected."
    ADDRESS = "Too many clients without a valid token are connected from this address."
    CLAIM = "Too many tokens from this address are being checked."
    TOKEN = "Too many requests with this token are in progress."  # noqa: S105 - not a password


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

    def full(self, share: Share, owner: str) -> bool:
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

    `owner`: an address or a token's id, whichever is known of the client.
    """

    def __init__(self) -> None:
        self.owner = ""
        self._slots: ConcurrencyLimit | None = None
        self._held: tuple[tuple[Share, str], ...] = ()

    @property
    def taken(self) -> bool:
        """Whether it counts among all."""
        return (Share.ALL, "") in self._held

    def claim(self, slots: ConcurrencyLimit, address: str) -> Share | None:
        """Count a token that is being checked; it does not take the slot yet.

        Returns the share that is full, if one is; then it counts nowhere. So do the others.
        """
        return self._count(slots, (Share.CLAIM, network(address)))

    def of_unauthenticated(self, slots: ConcurrencyLimit, address: str) -> Share | None:
        """Take it for a request without a valid token."""
        shares = (Share.ALL, ""), (Share.UNAUTHENTICATED, ""), (Share.ADDRESS, network(address))
        return self._count(slots, *shares)

    def of_unchecked(self, slots: ConcurrencyLimit, address: str) -> Share | None:
        """Take it for a request whose token nobody can check now; it still counts as a claim."""
        return self._count(slots, (Share.ALL, ""), (Share.CLAIM, network(address)))

    def of_token(self, slots: ConcurrencyLimit, token_id: str) -> Share | None:
        """Take it for a request with a valid token, wherever it comes from."""
        return self._count(slots, (Share.ALL, ""), (Share.TOKEN, token_id))

    def leave(self) -> None:
        """Count in no share any more."""
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
            if slots.full(*share):
                return share[0]
        self._slots, self._held = slots, shares
        slots.taken.update(shares)
        return None


def network(address: str) -> str:
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

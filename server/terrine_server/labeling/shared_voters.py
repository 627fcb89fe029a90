"""Teachers that stay with their owners and show their votes to nobody.

Each owner splits its vote into two shares; a second server, the aggregator, adds one share of each
and its noise, and this server adds the other. What comes out are sums of votes with the
aggregator's noise in full: who sees what, and the proof, are in docs/privacy/secret-sharing.md.
"""

from __future__ import annotations

from math import ceil, log, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling import shares
from terrine_server.labeling.aggregator_terms import ask_terms
from terrine_server.labeling.remote_voters import (
    REPLY_BYTES,
    RemoteVoters,
    VoteRequest,
    ask,
    ask_all,
    check_quorum,
    connected,
    read_share,
    requests_for,
    stand_in,
)
from terrine_server.ledger import EnsembleRecord

if TYPE_CHECKING:
    from terrine_models.teachers.federation import AggregatorAddress, Federation

FAILURE = 1e-12
"""How often, at most, the aggregator's noise alone makes the sum of an input's counts look
wrong."""

logger = structlog.get_logger("terrine")


class SharedVoters(RemoteVoters):
    """Turns batches of inputs into sums of votes that carry an aggregator's noise."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._lied_to = set[str]()
        """Digests of federations whose shares did not add up: asking again would spend the
        aggregator's budget for nothing. They stay here until the operator starts the server
        again."""

    def votes(self, record: EnsembleRecord, inputs: np.ndarray) -> np.ndarray:
        """Return the sums for canonical inputs `[B, …]`, modulo 2³²: uint32 `[B, m]`.

        Raises `EnsembleUnavailable`, also if fewer owners than the quorum answer, if the aggregator
        does not, or if the sums cannot be those of one vote an owner.
        """
        gathered = self._verified(record)
        federation, aggregator = gathered.federation, gathered.aggregator
        if federation.aggregator is None or aggregator is None:
            raise EnsembleUnavailable(f"The federation of {record.name} names no aggregator.")
        if record.manifest_sha256 in self._lied_to:
            raise _implausible(record)
        rows, classes, name = len(inputs), len(federation.classes), shares.new_round()
        requests = list(requests_for(federation.owners, inputs, classes, name))
        replies = self._running().run(ask_all(gathered.asked, requests, federation.timeout_seconds))
        sums = np.zeros((rows, classes), dtype=np.uint32)
        present, absent = [], []
        for owner, reply in zip(federation.owners, replies, strict=True):
            share = read_share(reply, rows, classes)
            if isinstance(share, str):
                absent.append(owner.name)
                share = shares.one_hot(stand_in(owner.name, inputs, classes), classes)
            else:
                present.append(owner.name)
            sums += share
        check_quorum(record, federation, absent)
        sums += self._opened(
            record, aggregator, name, present, sums.shape, federation.timeout_seconds
        )
        if not plausible(sums, len(federation.owners), federation.aggregator.sigma):
            self._lied_to.add(record.manifest_sha256)
            logger.error(
                "shares do not add up",
                ensemble=record.name,
                then="nobody is asked again before this server is restarted; find the owner first",
            )
            raise _implausible(record)
        return sums

    def _opened(
        self,
        record: EnsembleRecord,
        aggregator: httpx.AsyncClient,
        name: str,
        present: list[str],
        shape: tuple[int, int],
        seconds: float,
    ) -> shares.Share:
        """Return the aggregator's shares of these owners and its noise, added up."""
        body = msgspec.json.encode({"owners": present, "rows": shape[0]})
        sent = {"url": f"v1/rounds/{name}", "content": body}
        most = REPLY_BYTES + shares.WIDTH * shape[0] * shape[1]
        reply = self._running().run(ask(aggregator, VoteRequest(sent, most), seconds))
        if reply == "status 403":
            raise EnsembleUnavailable(
                f"The aggregator of {record.name} has released all that its budget pays for. "
                "Nothing "
                "was charged. More is for the party who runs it to decide."
            )
        found = read_share(reply, *shape)
        if isinstance(found, str):
            logger.error("aggregator failed", ensemble=record.name, because=found)
            raise EnsembleUnavailable(
                f"The aggregator of {record.name} did not answer as it should. Nothing was "
                "charged. "
                "Retry later."
            )
        return found


def _implausible(record: EnsembleRecord) -> EnsembleUnavailable:
    return EnsembleUnavailable(
        f"The shares of {record.name} do not add up to one vote an owner: an owner, or the "
        "aggregator, sends something else. Nothing was charged, and nobody is asked again before "
        "the "
        "operator has restarted the server."
    )


def probe_aggregator(
    directory: Path, federation: Federation, aggregator: AggregatorAddress
) -> str | None:
    """Ask the aggregator of a federation for its terms; return what is wrong with it, or None.

    Raises StoreError for a certificate or token in `directory` that cannot be used.
    """
    found = ask_terms(connected(directory, aggregator), federation.timeout_seconds)
    if isinstance(found, str):
        return found
    terms = found.terms
    if terms.sigma != aggregator.sigma or terms.classes != len(federation.classes):
        return (
            f"σ = {terms.sigma:g} and {terms.classes} classes there, σ = {aggregator.sigma:g} "
            f"and {len(federation.classes)} in the federation"
        )
    unknown = {owner.name for owner in federation.owners} - set(terms.owners)
    return f"it does not know {', '.join(sorted(unknown)[:5])}" if unknown else None


def plausible(sums: NDArray[np.uint32], owners: int, sigma: float) -> bool:
    """Whether the counts of each row of sums add up to the owners, but for the aggregator's noise.

    Each of m draws is σ²-subgaussian (Canonne, Kamath & Steinke 2020), so their sum exceeds the
    tolerance with a probability of at most `FAILURE`. What the honest voted for has no part in it.
    """
    tolerance = ceil(sigma * sqrt(2 * sums.shape[1] * log(2 / FAILURE)))
    totals = sums.sum(axis=1, dtype=np.uint32) - np.uint32(owners)
    return bool((np.abs(totals.view(np.int32).astype(np.int64)) <= tolerance).all())

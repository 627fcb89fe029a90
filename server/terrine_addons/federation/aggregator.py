"""The aggregator: the second server of two that add up votes which neither of them sees.

It keeps one share of each vote in memory until its round is opened, once; adds up, adds its noise
in full, and counts what it releases, durably, before it does. Its budget is what the service that
asks may learn from all rounds together: docs/addons/federation-two-servers.md.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import msgspec
import numpy as np
from anyio import CapacityLimiter, to_thread
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from terrine_addons.federation import voters
from terrine_addons.federation.federations import read_token
from terrine_addons.federation.voters import (
    TERMS,
    AggregatorInfo,
    AggregatorTerms,
    InferenceError,
    Share,
)
from terrine_models.storage.manifests import StoreError
from terrine_protocol.files import write_atomically
from terrine_server.privacy import Account
from terrine_server.privacy.noise import discrete_gaussian
from terrine_server.serving import Limits
from terrine_server.serving.bounds import Guard, limits_for

BOOKS, SERVICE, OWNERS = "aggregator.db", "service.token", "owners"
MAX_WAITING_BYTES = 2**30
"""Bytes of shares that wait for their rounds, of all owners; each has an equal part."""
MAX_ROUND_INPUTS = 2**14
"""Inputs of one round, at most: four times what the service takes in one request by default."""
MAX_SHARE_BYTES = 64 * 2**20
"""Of one share, at most; see also `MAX_WAITING_BYTES`."""
MAX_OPENING_BYTES = 2**20
"""Of a request that opens a round: the names of its owners."""


class ReleaseCounter:
    """How many queries were released, in a file; it never goes back."""

    def __init__(self, directory: Path) -> None:
        """Open what `make` made. Raises StoreError."""
        path = directory / BOOKS
        if not path.exists():
            raise StoreError(
                f"{directory} holds no aggregator: make one with `terrine federation "
                "make-aggregator`."
            )
        self._lock = Lock()
        try:
            self._db = sqlite3.connect(
                path, timeout=10, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA synchronous = FULL")
            (text,) = self._db.execute("SELECT terms FROM aggregator").fetchone()
            self.terms = AggregatorTerms.model_validate_json(text)
        except (sqlite3.Error, ValidationError, TypeError) as error:
            raise StoreError(f"{path} cannot be used: {error}") from None
        self.most = self.terms.price().affordable(Account())

    @property
    def released(self) -> int:
        """How many queries were released."""
        with self._lock:
            return int(self._db.execute("SELECT released FROM aggregator").fetchone()[0])

    def add(self, queries: int) -> bool:
        """Count queries, and return True once that is durable; or False if they are too many."""
        with self._lock:
            done = self._db.execute(
                "UPDATE aggregator SET released = released + ?1 WHERE released + ?1 <= ?2",
                (queries, self.most),
            )
            return done.rowcount == 1


class PendingShares:
    """Shares that wait for their rounds: one at most of each owner for each round."""

    def __init__(self, owners: Sequence[str], memory: int = MAX_WAITING_BYTES) -> None:
        self.most = min(memory // len(owners), MAX_SHARE_BYTES)
        self._held: dict[str, OrderedDict[str, bytes]] = {name: OrderedDict() for name in owners}
        self._size = dict.fromkeys(owners, 0)

    def put(self, owner: str, of_round: str, share: bytes) -> bool:
        """Keep a share of at most `most` bytes; False if there is one of this round already.

        An owner's oldest shares make room for the new: their rounds cannot be opened any more.
        """
        held = self._held[owner]
        if of_round in held:
            return False
        held[of_round] = share
        self._size[owner] += len(share)
        while self._size[owner] > self.most:
            self._size[owner] -= len(held.popitem(last=False)[1])
        return True

    def take(self, of_round: str) -> Mapping[str, bytes]:
        """Return the shares of a round, by owner, and forget them."""
        taken = {}
        for owner, held in self._held.items():
            share = held.pop(of_round, None)
            if share is not None:
                self._size[owner] -= len(share)
                taken[owner] = share
        return taken


class _Opening(msgspec.Struct, forbid_unknown_fields=True):
    owners: list[str]
    rows: int


_OPENING = msgspec.json.Decoder(_Opening)


@dataclass(frozen=True)
class Keys:
    """Who holds which token: digests of tokens, so that looking one up tells nothing of others."""

    owners: Mapping[bytes, str]
    service: bytes

    @classmethod
    def read(cls, directory: Path, terms: AggregatorTerms) -> Keys:
        """Read the tokens that `make` made. Raises StoreError."""
        owners = {
            _digest(read_token(directory / OWNERS / f"{name}.token")): name for name in terms.owners
        }
        service = _digest(read_token(directory / SERVICE))
        if len(owners) < len(terms.owners) or service in owners:
            raise StoreError(f"Two files in {directory} hold the same token.")
        return cls(owners, service)


class Aggregator:
    """The server of a directory that `make` made."""

    def __init__(self, directory: Path) -> None:
        """Open it. Raises StoreError."""
        self.directory = directory
        self.count = ReleaseCounter(directory)
        self.terms = self.count.terms
        self._agreed = self.terms.digest()
        self._keys = Keys.read(directory, self.terms)
        row = voters.NUMBER_BYTES * self.terms.classes
        self._waiting = PendingShares(self.terms.owners)
        self._most = min(self._waiting.most, MAX_ROUND_INPUTS * row)
        self.limits = limits_for(1 + len(self.terms.owners))
        self._noise = discrete_gaussian(self.terms.sigma)
        self._releasing = CapacityLimiter(1)

    def app(self, limits: Limits | None = None) -> Starlette:
        """Return the server's routes. `limits`: of connections, by default `self.limits`."""
        of_round = "/v1/rounds/{round}"
        most = max(self._most, MAX_OPENING_BYTES)
        return Starlette(
            routes=[
                Route("/v1/terms", self._show),
                Route(f"{of_round}/share", self._keep, methods=["PUT"]),
                Route(of_round, self._open, methods=["POST"]),
            ],
            middleware=[Middleware(Guard, limits or self.limits, most, self._caller)],
        )

    def _caller(self, headers: Mapping[bytes, bytes]) -> str | None:
        digest = _digest_of(headers.get(b"authorization", b""))
        return "the service" if digest == self._keys.service else self._keys.owners.get(digest)

    async def _show(self, request: Request) -> Response:
        digest = _digest_token(request)
        if digest != self._keys.service and digest not in self._keys.owners:
            return _refuse(401, "This needs a token of this aggregator (Authorization: Bearer).")
        left = self.count.most - self.count.released
        shown = AggregatorInfo(terms=self.terms, queries_left=left)
        return JSONResponse(shown.model_dump(mode="json"))

    async def _keep(self, request: Request) -> Response:
        owner = self._keys.owners.get(_digest_token(request))
        if owner is None:
            return _refuse(401, "This needs the token of an owner (Authorization: Bearer).")
        name = request.path_params["round"]
        if re.fullmatch(voters.ROUND_NAME, name) is None:
            return _refuse(400, "A round's name is 32 hexadecimal digits.")
        if request.headers.get(TERMS) != self._agreed:
            return _refuse(
                409,
                "This share is made under other terms than those of this aggregator, or names "
                "none.",
            )
        body = await request.body()
        if len(body) > self._most:
            return _refuse(413, f"A share has at most {self._most} bytes here.")
        try:
            voters.check_share(request.headers.get(voters.SHAPE, ""), body, self.terms.classes)
        except InferenceError as error:
            return _refuse(400, f"The share is refused: {error}.")
        if not self._waiting.put(owner, name, body):
            return _refuse(409, "There is a share of this owner for this round already.")
        return Response(status_code=204)

    async def _open(self, request: Request) -> Response:
        if _digest_token(request) != self._keys.service:
            return _refuse(401, "This needs the token of the service (Authorization: Bearer).")
        try:
            asked = _OPENING.decode(await request.body())
        except (msgspec.MsgspecError, RecursionError) as error:
            return _refuse(400, f"Expected the names of owners, and rows ({error}).")
        taken = self._waiting.take(request.path_params["round"])
        chosen = [taken[name] for name in asked.owners if name in taken]
        # A share with weight 2 would be a vote that counts, and moves, twice.
        if len(set(asked.owners)) < len(asked.owners) or len(chosen) < max(1, len(asked.owners)):
            return _refuse(409, "Not one share of each of these owners is here. Start anew.")
        try:
            found = [voters.decode_share(each, asked.rows, self.terms.classes) for each in chosen]
        except InferenceError as error:
            return _refuse(409, f"A share of this round does not fit: {error}. Start anew.")
        released = await to_thread.run_sync(self._released, found, limiter=self._releasing)
        if released is None:
            return _refuse(403, "This aggregator has released all that its budget pays for.")
        return Response(voters.encode_share(released), media_type="application/octet-stream")

    def _released(self, found: Sequence[Share]) -> Share | None:
        """Count, then add up, with noise; None if the budget does not pay for it."""
        if not self.count.add(len(found[0])):
            return None
        total = np.sum(found, axis=0, dtype=np.uint32)
        noise = self._noise.sample(total.shape).astype(np.uint32)
        return np.asarray(total + noise)


def make(terms: AggregatorTerms, directory: Path) -> None:
    """Make an aggregator in a new directory: its count, at 0, and a token for everybody.

    Raises StoreError.
    """
    if directory.exists():
        raise StoreError(f"{directory} exists. Choose another; a count is never started anew.")
    (directory / OWNERS).mkdir(mode=0o700, parents=True)
    directory.chmod(0o700)
    for path in (SERVICE, *(f"{OWNERS}/{name}.token" for name in terms.owners)):
        write_atomically(directory / path, f"{secrets.token_urlsafe(32)}\n".encode())
        (directory / path).chmod(0o600)
    with sqlite3.connect(directory / BOOKS) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(
            "CREATE TABLE aggregator (one INTEGER PRIMARY KEY CHECK (one = 1), terms TEXT NOT "
            "NULL, "
            "released INTEGER NOT NULL CHECK (released >= 0)) STRICT"
        )
        db.execute("INSERT INTO aggregator VALUES (1, ?, 0)", (terms.model_dump_json(),))
    db.close()
    (directory / BOOKS).chmod(0o600)


def _digest_token(request: Request) -> bytes:
    """Return the digest of the token that a request shows."""
    return _digest_of(request.headers.get("authorization", "").encode("latin-1"))


def _digest_of(authorization: bytes) -> bytes:
    return hashlib.sha256(authorization.removeprefix(b"Bearer ")).digest()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _refuse(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status_code=status)

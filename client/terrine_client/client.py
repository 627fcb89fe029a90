"""The clients: what can be asked of a Terrine server, each method written once for both."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from terrine_client._batches import request_exhausted_shares, request_labels, show_progress
from terrine_client._calls import Call, Page, Plan, all_items
from terrine_client._connection import (
    AsyncConnection,
    BlockingConnection,
    Connection,
    listing,
    operation,
)
from terrine_client._labels import Inputs, Labels, encode_columns, has_columns, pandas_index
from terrine_client._receipts import ReceiptReport, read_policy, verify
from terrine_client.errors import ConfigurationError
from terrine_protocol import (
    Budget,
    BudgetPage,
    Charge,
    EnsembleAccount,
    EnsembleInfo,
    LedgerPage,
    LogState,
    Outcome,
    ProjectInfo,
    ProjectOpen,
    ProjectStatus,
    ProjectUpdate,
    TokenCreate,
    TokenCreated,
    TokenInfo,
    TokenPage,
    Verification,
)
from terrine_protocol.transparency import Policy

_PAGE = {"limit": "1000"}
_ENSEMBLES: TypeAdapter[list[EnsembleAccount | EnsembleInfo]] = TypeAdapter(
    list[EnsembleAccount | EnsembleInfo]
)


class _Methods(Connection[Any]):
    """What either client can ask."""

    @operation
    def label(
        self,
        x: Inputs,
        probabilities: npt.ArrayLike | None = None,
        *,
        progress: bool = False,
        accept_clipped: bool = False,
    ) -> Plan[Labels]:
        """Request labels for x, at no more than the prices of `project`.

        x: numbers [B, …]; in a project of tables also a data frame of pandas, Polars or Arrow, a
            dictionary of columns, a list of dictionaries with a row each, or the path of a CSV,
            Parquet or Arrow file, which are encoded by the project's schema.
        probabilities: [B, m], the student's own, rows summing to 1; for `interactive_gnmax` only.
        progress: draw a progress bar on standard error.
        accept_clipped: ask although more than a tenth of a table's column is outside the schema's
            range, or missing.

        Inputs are sent in batches, in order. Those that the budget does not cover come back
        `refused`. Raises BudgetExhausted when it covers none, ValueError when x is not an array
        of numbers with one row per input, DataError when a table does not fit the schema, and
        ClientError otherwise. An error after the first
        batch carries the answers until then in `partial`; sending the inputs again returns them
        at no cost.
        """
        inputs = yield from self._encode(x, accept_clipped)
        keep = self.receipts.keep
        with show_progress(progress) as report:
            return (
                yield from request_labels(
                    inputs, probabilities, self._batch_size, keep, report, pandas_index(x)
                )
            )

    @operation
    def used_up(self, x: Inputs, *, accept_clipped: bool = False) -> Plan[npt.NDArray[np.float64]]:
        """How far people near each of x are exhausted, float [B] from 0 to 1. Free.

        x, accept_clipped: as `label` takes them.

        For projects of neighbours: of public rows near each input, the share that could not vote
        any more if they were private. From 0.95 on, an input is `exhausted`: no vote is taken.
        """
        inputs = yield from self._encode(x, accept_clipped)
        return (yield from request_exhausted_shares(inputs, self._batch_size))

    @operation
    def budget(self) -> Call[Budget]:
        """The account of the token's project."""
        return Call("GET", "/budget", Budget)

    @operation
    def pool(self) -> Call[bytes]:
        """What the owner designed to be asked, of a project that needs no public data; free.

        An .npz archive: `x` float32 [R, D], the inputs, `natural` float32 [P, D], rows as they
        occur (public ones, or drawn as released margins are), `prior` float64 [m], the share of
        each class, and `of_public`, whether `natural` are public. Raises NotFound for a project
        whose students have inputs of their own.
        """
        return Call("GET", "/pool", bytes)

    @operation
    def sums(self) -> Call[bytes]:
        """What a project of sums released when it was opened, with all to make a student of; free.

        An .npz archive that `terrine_models.sums.ReleasedSums.of_bytes` reads. Raises NotFound for
        any other project.
        """
        return Call("GET", "/sums", bytes)

    @operation
    def verify_receipts(
        self, policy: Policy | Path | str | bytes | None, *, others: Iterable[str] = ()
    ) -> Plan[ReceiptReport]:
        """Check that the log contains every entry that paid for an answer of this connection.

        policy: whose signatures the log's checkpoint needs, or the path of a file with it. With
            None, who signed it is not checked.
        others: checkpoints that others have seen; the log must agree with them.

        `receipts` holds what is checked; save it to check it again another day. Nothing that the
        server says is trusted without a proof. For students.
        """
        known = None if policy is None else read_policy(policy)
        return verify(self.receipts, known, others)

    @operation
    def checkpoint(self) -> Plan[str]:
        """The transparency log's newest checkpoint, a signed note. Raises NotFound if it has none.

        Nothing of it is checked: `verify_receipts` does. For all who have a token.
        """
        note: bytes = yield Call("GET", "/checkpoint", bytes)
        return note.decode("utf-8", "replace")

    @operation
    def project(self, name: str | None = None) -> Call[ProjectInfo]:
        """A project's terms: mechanism, prices, input format; by default the token's project."""
        return Call(
            "GET",
            f"/projects/{_segment(name)}" if name else "/project",
            ProjectInfo,
        )

    @operation
    def ensembles(self) -> Call[list[EnsembleAccount | EnsembleInfo]]:
        """The ensembles that the token may see; with their caps for auditors and admins."""
        return Call("GET", "/ensembles", _ENSEMBLES)

    @listing
    def ledger(self) -> Call[Page[Budget]]:
        """Every project's account, by name. For auditors and admins."""
        return Call("GET", "/ledger", BudgetPage, params=_PAGE)

    @operation
    def log_state(self) -> Plan[LogState | None]:
        """Size and cosignatures of the transparency log's last checkpoint, as the service says.

        None before there is one. For auditors and admins. `verify_receipts` trusts none of it.
        """
        page: BudgetPage = yield Call("GET", "/ledger", BudgetPage, params={"limit": "1"})
        return page.log

    @listing
    def charges(
        self,
        project: str,
        *,
        outcome: Outcome | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Call[Page[Charge]]:
        """A project's charges, oldest first, fetched as they are read. For auditors and admins.

        since, until: from this instant, and before this one; without a time zone, local time.
        """
        if outcome is not None and outcome not in set(Outcome):
            raise ConfigurationError(f"The outcome must be one of {', '.join(Outcome)}.")
        params = dict(_PAGE)
        if outcome is not None:
            params["outcome"] = str(outcome)
        for name, instant in (("since", since), ("until", until)):
            if instant is not None:
                params[name] = instant.astimezone(UTC).isoformat()
        path = f"/ledger/{_segment(project)}"
        return Call("GET", path, LedgerPage, params=params)

    @operation
    def verify(self, project: str) -> Call[Verification]:
        """Have the server recompute a project's hash chain and balances."""
        return Call("GET", f"/ledger/{_segment(project)}/verify", Verification)

    @operation
    def open_project(self, terms: ProjectOpen) -> Call[ProjectInfo]:
        """Open a project on terms that never change. For admins."""
        return Call("POST", "/projects", ProjectInfo, terms, repeatable=False)

    @operation
    def set_status(self, project: str, status: ProjectStatus) -> Call[ProjectInfo]:
        """Pause, resume or, for good, close a project. For admins."""
        return Call(
            "PATCH",
            f"/projects/{_segment(project)}",
            ProjectInfo,
            ProjectUpdate(status=status),
        )

    @operation
    def create_token(self, request: TokenCreate) -> Call[TokenCreated]:
        """Create a token; its secret is returned only here. For admins."""
        return Call("POST", "/tokens", TokenCreated, request, repeatable=False)

    @operation
    def tokens(self) -> Plan[list[TokenInfo]]:
        """Every token, without its secret. For admins."""
        return all_items(Call("GET", "/tokens", TokenPage, params={**_PAGE, "cursor": ""}))

    @operation
    def revoke_token(self, token_id: str) -> Call[TokenInfo]:
        """Revoke a token at once. For admins."""
        return Call("DELETE", f"/tokens/{_segment(token_id)}", TokenInfo)

    def _encode(self, x: Inputs, accept_clipped: bool) -> Plan[Any]:
        """Return the numbers that are sent, by the project's schema if x has columns."""
        if not has_columns(x):
            return x
        project: ProjectInfo = yield Call("GET", "/project", ProjectInfo)
        return encode_columns(x, project, accept_clipped, stacklevel=6)


class Client(_Methods, BlockingConnection):
    """A connection to a Terrine server. Threads may share it; close it, or use `with`.

    url: the server's, such as `https://labels.example.org`; a path prefix is kept.
    token: the bearer token; by default the environment variable TERRINE_TOKEN.
    timeout: seconds to wait for the connection, and for each part of a reply.
    retries: further attempts after a lost connection, a time-out or a 429, 502, 503 or 504.
    batch_size: inputs per request; larger arrays are split.
    insecure: allow plain http to another machine; anyone on the network path can read the token.

    The constructor raises ConfigurationError; every method may raise any ClientError.
    """


class AsyncClient(_Methods, AsyncConnection):
    """The same for asyncio: takes the arguments of `Client` and has its methods, to be awaited.

    Any number of tasks may share it; close it with `aclose`, or use `async with`.
    """


def _segment(name: str) -> str:
    return quote(name, safe="")

"""The synchronous client, made of `async_client.py` by `make client`: edit that one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import numpy as np
import numpy.typing as npt

from terrine_client import _calls
from terrine_client._batches import used_up_batches
from terrine_client._calls import Call, transport_errors
from terrine_client._connection import BaseClient
from terrine_client._labels import Labels
from terrine_client._progress import progress_bar
from terrine_client._receipts import Plan, ReceiptReport, read_policy, verify
from terrine_client._rows import Inputs, encode_columns, has_columns, index_of
from terrine_client.errors import ClientError
from terrine_protocol import (
    Budget,
    BudgetPage,
    Charge,
    EnsembleAccount,
    EnsembleInfo,
    LedgerPage,
    LogState,
    MechanismSpec,
    Outcome,
    ProjectInfo,
    ProjectOpen,
    ProjectStatus,
    RequestAccount,
    RequestApprove,
    RequestApproved,
    RequestInfo,
    RequestPage,
    RequestStatus,
    TokenCreate,
    TokenCreated,
    TokenInfo,
    TokenPage,
    Verification,
)
from terrine_protocol.transparency import Policy

T = TypeVar("T")
Page = TypeVar("Page", LedgerPage, BudgetPage, TokenPage, RequestPage)


class Client(BaseClient[httpx.Client]):
    """A connection to a Terrine server. Threads may share it; close it, or use `with`.

    url: the server's, such as `https://labels.example.org`; a path prefix is kept.
    token: the bearer token; by default the environment variable TERRINE_TOKEN.
    timeout: seconds to wait for the connection, and for each part of a reply.
    retries: further attempts after a lost connection, a time-out or a 429, 502, 503 or 504.
    batch_size: inputs per request; larger arrays are split.
    insecure: allow plain http to another machine; anyone on the network path can read the token.

    The constructor raises ConfigurationError; every method may raise any ClientError.
    """

    @staticmethod
    def _open(**options: Any) -> httpx.Client:
        return httpx.Client(**options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def label(
        self,
        x: Inputs,
        probabilities: npt.ArrayLike | None = None,
        *,
        progress: bool = False,
        accept_clipped: bool = False,
    ) -> Labels:
        """Request labels for x, at no more than the prices of `project`.

        x: numbers [B, …]; in a project of tables also a data frame of pandas, Polars or Arrow, a
            dictionary of columns, a list of dictionaries with a row each, or the path of a CSV,
            Parquet or Arrow file, which are encoded by the project's schema.
        probabilities: [B, m], the student's own, rows summing to 1; for interactive_gnmax only.
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
        inputs = self._encoded(x, accept_clipped)
        with progress_bar(progress) as report:
            return self._run(self._label_batches(inputs, probabilities, report, index_of(x)))

    def used_up(self, x: Inputs, *, accept_clipped: bool = False) -> npt.NDArray[np.float64]:
        """How far people near each of x are used up, float [B] from 0 to 1. Free.

        x, accept_clipped: as `label` takes them.

        For projects of neighbours: of public rows near each input, the share that could not vote
        any more if they were private. From 0.95 on, an input is `exhausted`: nobody is asked.
        """
        inputs = self._encoded(x, accept_clipped)
        return self._run(used_up_batches(inputs, self._batch_size))

    def budget(self) -> Budget:
        """The account of the token's project."""
        return self._send(_calls.budget())

    def verify_receipts(
        self, policy: Policy | Path | str | bytes, *, others: Iterable[str] = ()
    ) -> ReceiptReport:
        """Check that the log contains every entry that paid for an answer of this connection.

        policy: whose signatures the log's checkpoint needs, or the path of a file with it.
        others: checkpoints that others have seen; the log must agree with them.

        `receipts` holds what is checked; save it to check it again another day. Nothing that the
        server says is believed without a proof. For students.
        """
        return self._run(verify(self.receipts, read_policy(policy), others))

    def project(self, name: str | None = None) -> ProjectInfo:
        """A project's terms: mechanism, prices, input format; by default the token's project."""
        return self._send(_calls.project(name))

    def request_project(
        self,
        title: str,
        purpose: str,
        epsilon: float,
        *,
        delta: float | None = None,
        mechanism: MechanismSpec | None = None,
    ) -> RequestInfo:
        """Ask the data owner for a new project on the same ensemble, also for more budget.

        title, purpose: what it is to be called, and what its labels are for.
        epsilon: its own budget, besides that of the token's project, which does not change.
        delta, mechanism: by default those of the token's project.

        The same request again, while it is open, is the same one. Raises Conflict when too many
        are open. For students.
        """
        return self._send(_calls.make_request(title, purpose, epsilon, delta, mechanism))

    def requests(
        self, status: RequestStatus | str | None = None
    ) -> Iterator[RequestAccount | RequestInfo]:
        """The requests of this token, oldest first; for auditors and admins, everybody's."""
        return self._pages(_calls.requests(status))

    def request(self, request_id: str) -> RequestAccount | RequestInfo:
        """What has become of a request; for admins, with what approving it would mean."""
        return self._send(_calls.request(request_id))

    def approve_request(self, request_id: str, approval: RequestApprove) -> RequestApproved:
        """Open the project that was asked for, as it was or with other terms. For admins."""
        return self._send(_calls.approve_request(request_id, approval))

    def refuse_request(self, request_id: str, reason: str) -> RequestInfo:
        """Refuse a request; whoever made it reads the reason. For admins."""
        return self._send(_calls.refuse_request(request_id, reason))

    def ensembles(self) -> list[EnsembleAccount | EnsembleInfo]:
        """The ensembles that the token may see; with their caps for auditors and admins."""
        return self._send(_calls.ensembles())

    def ledger(self) -> Iterator[Budget]:
        """Every project's account, by name. For auditors and admins."""
        return self._pages(_calls.ledger())

    def log_state(self) -> LogState | None:
        """Size and cosignatures of the transparency log's last checkpoint, as the service says.

        None before there is one. For auditors and admins. `verify_receipts` believes none of it.
        """
        return (self._send(_calls.ledger("1"))).log

    def charges(
        self,
        project: str,
        *,
        outcome: Outcome | str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Iterator[Charge]:
        """A project's charges, oldest first, fetched as they are read. For auditors and admins.

        since, until: from this instant, and before this one; without a time zone, local time.
        """
        return self._pages(_calls.charges(project, outcome, since, until))

    def verify(self, project: str) -> Verification:
        """Have the server recompute a project's hash chain and balances."""
        return self._send(_calls.verify(project))

    def open_project(self, terms: ProjectOpen) -> ProjectInfo:
        """Open a project on terms that never change. For admins."""
        return self._send(_calls.open_project(terms))

    def set_status(self, project: str, status: ProjectStatus) -> ProjectInfo:
        """Pause, resume or, for good, close a project. For admins."""
        return self._send(_calls.set_status(project, status))

    def create_token(self, request: TokenCreate) -> TokenCreated:
        """Create a token; its secret is returned only here. For admins."""
        return self._send(_calls.create_token(request))

    def tokens(self) -> list[TokenInfo]:
        """Every token, without its secret. For admins."""
        return list(self._pages(_calls.tokens()))

    def revoke_token(self, token_id: str) -> TokenInfo:
        """Revoke a token at once. For admins."""
        return self._send(_calls.revoke_token(token_id))

    def _encoded(self, x: Inputs, accept_clipped: bool) -> Any:
        """The numbers that are sent; of what has columns, by the project's schema."""
        if not has_columns(x):
            return x
        return encode_columns(x, self.project(), accept_clipped)

    def _send(self, call: Call[T]) -> T:
        for attempt in self._attempts(call):
            with attempt, transport_errors():
                return call.read(self._http.send(call.request(self._http)))
        raise AssertionError("stamina raises after the last attempt")

    def _run(self, plan: Plan[T]) -> T:
        try:
            call = next(plan)
            while True:
                try:
                    reply = self._send(call)
                except ClientError as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(reply)
        except StopIteration as done:
            found: T = done.value
            return found

    def _pages(self, call: Call[Page]) -> Iterator[Any]:
        page = self._send(call)
        while True:
            yield from page.items
            if page.next is None:
                return
            page = self._send(call.at(page.next))

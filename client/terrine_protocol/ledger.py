"""Entries of the ledger, pages of them and of accounts, and results of verification."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, computed_field

from terrine_protocol.base import Name, Outcome, Reply, absent
from terrine_protocol.labeling import Budget
from terrine_protocol.mechanisms import MechanismSpec


class Charge(Reply):
    """One entry of a project's ledger."""

    project: Name
    seq: Annotated[int, Field(ge=1, description="Numbered from 1 without gaps.")]
    created_at: datetime
    outcome: Outcome
    label: int | None
    label_name: Annotated[
        str | None,
        Field(
            exclude_if=absent,
            description="Name of its class, as in answers. Not covered by the hash.",
        ),
    ] = None
    figure: Annotated[
        int | None, Field(description="For a publication: the bound, in units of 1e-12.")
    ] = None
    cost: int
    delta: int
    mechanism: MechanismSpec
    event: Annotated[dict[str, Any], Field(description="The cost event, for any accountant.")]
    query_digest: Annotated[str, Field(description="SHA-256 of the canonical query.")]
    hash: Annotated[str, Field(description="SHA-256 over this entry and the previous hash.")]


class LedgerPage(Reply):
    """A page of charges, oldest first."""

    items: list[Charge]
    next: Annotated[
        str | None, Field(description="Pass as `cursor` for the next page; null at the end.")
    ] = None


class LogState(Reply):
    """What the transparency log's last checkpoint says. No answer waits for it."""

    size: Annotated[int, Field(ge=0, description="Entries of the ledger that are under it.")]
    cosigned: dict[str, datetime] = Field(
        description="Witnesses of the service's policy that cosigned it, and when."
    )
    missing: list[str] = Field(description="Witnesses of the policy that did not.")


class BudgetPage(Reply):
    """A page of projects' accounts, by name, and the state of the log of all their entries."""

    items: list[Budget]
    next: str | None = None
    log: Annotated[
        LogState | None, Field(description="Null before the log's first checkpoint.")
    ] = None


class LogEntry(Reply):
    """One entry of the administrative log: what the data owner did."""

    seq: Annotated[int, Field(ge=1, description="Numbered from 1 without gaps.")]
    created_at: datetime
    actor: Annotated[
        str,
        Field(
            description="`token:ID`, `KIND:SUBJECT (NAME)` of who signed in through an issuer of "
            "that kind, `local:USER` on the server's machine, or `service`."
        ),
    ]
    request_id: str | None
    action: str
    subject: Annotated[str, Field(description="A name, or the id of a token or request.")]
    detail: Annotated[
        dict[str, Any],
        Field(description="State of the ensemble, project, token or request afterwards."),
    ]
    hash: Annotated[str, Field(description="SHA-256 over this entry and the previous hash.")]


class LogPage(Reply):
    """A page of the administrative log, oldest first."""

    items: list[LogEntry]
    next: str | None = None


class LogVerification(Reply):
    """The result of verifying the administrative log, and of comparing the current rows with it."""

    entries: int
    head: Annotated[str, Field(description="Hash of the last entry.")]
    problems: Annotated[list[str], Field(description="What is wrong, in the order found.")]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


class Ready(Reply):
    """That queries can be answered, and the state of the transparency log."""

    status: str = "ready"
    log: Annotated[
        LogState | None, Field(description="Null before the log's first checkpoint.")
    ] = None


class EntryReceipt(Reply):
    """Where an entry of the ledger is in the transparency log."""

    charge: Annotated[int, Field(ge=1, description="Number of the entry.")]
    index: Annotated[int, Field(ge=0, description="Index of its leaf, from 0.")]


class ReceiptPage(Reply):
    """A page of a project's entries that are in the log, oldest first.

    None of this has to be trusted: an inclusion proof shows whether it is true.
    """

    leaf_key: Annotated[
        str | None,
        Field(
            description="Key of the project's leaves: the log's entry is HMAC-SHA256, with this "
            "key, of an entry's hash. Null as long as nothing is in the log."
        ),
    ]
    items: list[EntryReceipt]
    next: str | None = None


class Verification(Reply):
    """The result of verifying a project's ledger."""

    project: str
    charges: int
    head: Annotated[str, Field(description="Hash of the last entry.")]
    problems: Annotated[list[str], Field(description="What is wrong, in the order found.")]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

"""Exports of a project's ledger, and of the administrative log: written, and read again."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import RowMapping

from terrine_protocol import LogEntry
from terrine_protocol.errors import TerrineError
from terrine_protocol.files import open_regular_file
from terrine_server.errors import NotFound
from terrine_server.ledger import rows
from terrine_server.ledger.chain import (
    CHARGE_FIELDS,
    TERMS_FIELDS,
    canonical_json,
    counts_as_text,
    iso,
    plain_value,
    whole_numbers,
)
from terrine_server.ledger.database import Access
from terrine_server.ledger.entries import PAGE_ENTRIES, Entries
from terrine_server.ledger.log import AdministrativeLog, check_head
from terrine_server.ledger.records import ChargeRecord

# An entry as it is stored: a tuple of `ENTRY_COLUMNS`.
StoredEntry = Sequence[Any]
# The columns in an entry's tuple. `created_at` is text in the format of `chain.iso`.
ENTRY_COLUMNS = (*CHARGE_FIELDS[1:], "counts", "hash")

FORMAT = "terrine-export/1"
LOG_FORMAT = "terrine-log/1"
ACCOUNT_FIELDS = (
    "id",
    *TERMS_FIELDS,
    "status",
    "closed_at",
    "spent",
    "delta_spent",
    "cap_spent",
    "charges",
    "published",
    "genesis",
    "head",
)
_DIGESTS = {"ensemble__manifest_sha256", "genesis", "head"}
_TIMES = {"opened_at", "closed_at"}
# The fields of every entry. One with noisy counts has `counts`, too.
_FIELDS = {"project", "project_id", *ENTRY_COLUMNS} - {"counts"}


class ArchiveError(TerrineError):
    """A file that is not an export. The message says where."""


def account_line(project: RowMapping) -> dict[str, Any]:
    """Return the first line of an export, from a row of `rows.select_projects`."""

    return {
        "format": FORMAT,
        "version": version("terrine"),
        "account": {name: plain_value(project[name]) for name in ACCOUNT_FIELDS},
    }


def entry_line(entry: ChargeRecord) -> dict[str, Any]:
    """Return an entry's line, with its time in the form that is hashed."""
    line = {**vars(entry), "created_at": iso(entry.created_at)}
    counts = line.pop("counts")
    return line if counts is None else {**line, "counts": list(counts)}


def log_line(entries: int, head: bytes) -> dict[str, Any]:
    """Return the first line of an export of the administrative log: where the log ends."""
    return {
        "format": LOG_FORMAT,
        "version": version("terrine"),
        "entries": entries,
        "head": head.hex(),
    }


def log_entry_line(entry: LogEntry) -> dict[str, Any]:
    """Return the line of an entry of that log, with its time in the form that is hashed."""
    return {**vars(entry), "created_at": iso(entry.created_at)}


@contextmanager
def open_export(path: Path) -> Iterator[tuple[dict[str, Any], Iterator[StoredEntry]]]:
    """Open an export; yield the account, as `account_line` took it, and an iterator of entries.

    Raises OSError, and ArchiveError if the file is not an export, or a line not an entry.
    """
    with io.TextIOWrapper(open_regular_file(path), "utf-8", "surrogateescape") as lines:
        try:
            first = json.loads(next(lines, ""))
            if first["format"] != FORMAT or first["account"].keys() != set(ACCOUNT_FIELDS):
                raise ValueError(first["format"])
            project = {name: _to_stored(name, value) for name, value in first["account"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise ArchiveError(
                f"{path} does not begin with an account; expected what "
                "`terrine ledger export` of this version writes."
            ) from None
        yield project, _entries(path, project, lines)


def _entries(path: Path, project: Mapping[str, Any], lines: Iterable[str]) -> Iterator[StoredEntry]:
    for number, line in enumerate(lines, start=2):
        try:
            yield _entry(project, line)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ArchiveError(
                f"{path}, line {number}: not an entry of the project {project['name']}."
            ) from None


def _entry(project: Mapping[str, Any], line: str) -> StoredEntry:
    entry = json.loads(line)
    if entry.keys() - {"counts"} != _FIELDS:
        raise KeyError("other fields than an entry's")
    if (entry["project"], entry["project_id"]) != (project["name"], project["id"]):
        raise ValueError("an entry of another project")
    for name in ("seq", "label", "figure", "cost", "delta", "cap_cost"):
        missing = name in ("label", "figure") and entry[name] is None
        if type(entry[name]) is not int and not missing:
            raise TypeError(name)
    for name in ("query_digest", "input_digest", "hash"):
        entry[name] = bytes.fromhex(entry[name])
    for name in ("mechanism", "event"):
        entry[name] = canonical_json(entry[name])
    entry["counts"] = counts_as_text(whole_numbers(entry["counts"]) if "counts" in entry else None)
    return tuple(entry[name] for name in ENTRY_COLUMNS)


def _to_stored(name: str, value: Any) -> Any:
    if name in _DIGESTS:
        return bytes.fromhex(value)
    if name in _TIMES and value is not None:
        return datetime.fromisoformat(value).astimezone(UTC)
    return value


class Exports:
    """Exports what a ledger holds. Thread-safe."""

    def __init__(self, access: Access, entries: Entries, log: AdministrativeLog) -> None:
        self._access, self._entries, self._log = access, entries, log

    def export_project(self, project: str) -> Iterator[dict[str, Any]]:
        """Yield a project's account, then the entries that it counts, as lines of an export.

        In constant memory. Raises NotFound.
        """
        with self._access.reading() as connection:
            row = connection.execute(rows.project_by("name"), {"name": project}).one_or_none()
            if row is None:
                raise NotFound(rows.no_project(project))
        last = rows.project_record(row, self._access.seals).charges
        yield account_line(row._mapping)
        for entry in self._entries.stream(project):
            if entry.seq > last:
                return
            yield entry_line(entry)

    def export_log(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the administrative log, then its entries, as lines of an export.

        In constant memory. Raises LedgerCorrupted if the log does not end where it should.
        """
        with self._access.snapshot() as connection:
            end = check_head(connection, self._access.seals)
        yield log_line(end.entries, end.head)
        after = 0
        while after < end.entries:
            page = self._log.list(after, min(PAGE_ENTRIES, end.entries - after))
            yield from map(log_entry_line, page)
            after = page[-1].seq

"""What voters of other processes are told of an ensemble, and how they tell of a bug."""

from __future__ import annotations

from typing import NoReturn

import msgspec
import structlog

from terrine_server.labeling.local_voters import Registered
from terrine_server.logs import frames

log = structlog.get_logger("terrine")


class Reference(msgspec.Struct, frozen=True):
    """Which registered ensemble is meant: what another process must know of its record."""

    name: str
    path: str
    manifest_sha256: str

    @classmethod
    def to(cls, record: Registered) -> Reference:
        """Return the reference to an ensemble."""
        return cls(record.name, record.path, record.manifest_sha256)


class Defect(msgspec.Struct, frozen=True):
    """An exception that nobody expected: not its text, which may quote inputs or votes."""

    kind: str
    where: list[str]

    @classmethod
    def of(cls, error: Exception) -> Defect:
        """Describe an exception that was caught."""
        return cls(type(error).__name__, frames(error.__traceback__))

    def fail(self, whose: str) -> NoReturn:
        """Log it here, and raise a RuntimeError that says no more than whose defect it is."""
        log.error(f"defect in {whose}", exception=self.kind, where=self.where)
        raise RuntimeError(f"{whose} failed; the log names the bug")


def memory_of_a_thread() -> int:
    """Return the bytes that one thread of the server may vote with.

    Another process that votes with one thread has as many: products round by their size, so it
    must vote on as many inputs at a time.
    """
    import torch

    from terrine_models.ensemble import MEMORY

    return MEMORY // torch.get_num_threads()

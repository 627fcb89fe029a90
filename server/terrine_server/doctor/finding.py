"""A finding of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """A warning does not stop the service; a problem does, or should."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The result of one check: what was found and, unless it is fine, how to fix it."""

    check: str
    state: Severity
    found: str
    fix: str = ""

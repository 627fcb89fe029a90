"""What the doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How bad it is. A warning does not stop the service; a problem does, or should."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what was found and, unless all is well, what to do about it."""

    check: str
    state: State
    found: str
    mend: str = ""

"""One JSON object a line on stderr. No inputs, votes, labels or tokens ever reach it.

Every line has the event, level, time and process; a line that belongs to a request has its id. An
exception is its type and where it was raised: its text may quote values.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from types import TracebackType

import structlog

FRAMES = 12
"""Innermost frames of a traceback that are named."""


def configure(level: str) -> None:
    """Send our log and everyone else's, warnings included, through the same JSON renderer."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _process,
        _exception,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(ensure_ascii=False),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.captureWarnings(True)


def frames(trace: TracebackType | None) -> list[str]:
    """Return where a traceback leads, without the values that its text could quote."""
    found = traceback.extract_tb(trace)[-FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in found]


def _process(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Name the process: the workers of one server share its stderr."""
    event["pid"] = os.getpid()
    return event


def _exception(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    raised = event.pop("exc_info", None)
    if isinstance(raised, tuple) and raised[0] is not None:
        event["exception"], event["where"] = raised[0].__name__, frames(raised[2])
    return event

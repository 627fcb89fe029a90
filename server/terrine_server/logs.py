"""The log on stderr: JSON, one object per line, or text at a terminal. It never contains inputs,
votes, labels or tokens.

Every line of JSON has the event, level, time and process; a line about a request has its id. An
exception is logged as its type and where it was raised, without its text, which may quote values.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections import Counter
from types import TracebackType

import structlog

from terrine_protocol.names import show_text

# Number of innermost frames of a traceback that are logged.
MAX_FRAMES = 12
# Lines of libraries with the same text in `REPETITION_SECONDS`; what they say more is counted.
MAX_REPEATED_LINES = 10
REPETITION_SECONDS = 60.0


def is_text(chosen: str = "auto") -> bool:
    """Return whether the log is text: by default at a terminal. `chosen`: auto, json or text."""
    return chosen == "text" or (chosen != "json" and sys.stderr.isatty())


def configure(level: str, chosen: str = "auto") -> None:
    """Send our log and that of every library, warnings included, through one renderer.

    chosen: see `is_text`.
    """
    text = is_text(chosen)
    dated: list[structlog.typing.Processor] = [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_process_id,
    ]
    if text:  # people at a terminal need the time of day alone
        dated = [structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        *dated,
        _add_exception,
    ]
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer(ensure_ascii=False)
    if text:
        renderer = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0, pad_level=False)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _leave_out_tasks],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                renderer,
            ],
        )
    )
    handler.addFilter(RepetitionFilter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for library in ("alembic", "httpx"):  # a line for each step, or for each request to an owner
        logging.getLogger(library).setLevel(logging.WARNING)
    if text:  # its start and end are printed
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.captureWarnings(True)


def write_early(level: str, event: str, *, chosen: str = "auto", **fields: str) -> None:
    """Write one line, before the log is configured. `chosen`: see `is_text`."""
    if is_text(chosen):
        said = ": ".join([level.capitalize(), event, *filter(None, [fields.get("cause")])])
        setting = f" ({fields['setting']})" if "setting" in fields else ""
        sys.stderr.write(f"{show_text(said)}{setting}\n")
        return
    entry: structlog.typing.EventDict = {"event": event, "level": level, **fields}
    for process in (structlog.processors.TimeStamper(fmt="iso", utc=True), _add_process_id):
        entry = process(None, level, entry)
    line = structlog.processors.JSONRenderer(ensure_ascii=False)(None, level, entry)
    sys.stderr.write(f"{line!s}\n")


class RepetitionFilter(logging.Filter):
    """Drops lines of libraries that repeat themselves: clients can make some of them at will."""

    def __init__(self) -> None:
        super().__init__()
        self._since = time.monotonic()
        self._seen: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Count a line. The first one of a period says how many there were of it in the last."""
        if record.name == "terrine":
            return True
        if time.monotonic() - self._since > REPETITION_SECONDS:
            self._since, before, self._seen = time.monotonic(), self._seen, Counter()
            for (name, text), count in before.items():
                if count > MAX_REPEATED_LINES:
                    left_out = count - MAX_REPEATED_LINES
                    logging.getLogger(name).warning("%s (left out: %d more)", text, left_out)
        alike = record.name, str(record.msg).partition("\n")[0]
        self._seen[alike] += 1
        return self._seen[alike] <= MAX_REPEATED_LINES


def list_frames(trace: TracebackType | None) -> list[str]:
    """Return the places in a traceback, without the values that its text may quote."""
    found = traceback.extract_tb(trace)[-MAX_FRAMES:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in found]


def _add_process_id(
    _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Add the process id, as several servers may write to one stderr."""
    event["pid"] = os.getpid()
    return event


def _add_exception(
    _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    raised = event.pop("exc_info", None)
    if isinstance(raised, tuple):
        raised = raised[1]
    elif raised is True:
        raised = sys.exception()
    if isinstance(raised, BaseException):
        event["exception"] = type(raised).__name__
        event["where"] = list_frames(raised.__traceback__)
    return event


def _leave_out_tasks(
    _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Keep the first line of what an event loop says: others quote tasks, and so exceptions."""
    if event["_record"].name == "asyncio":
        event["event"] = str(event["event"]).partition("\n")[0]
    return event

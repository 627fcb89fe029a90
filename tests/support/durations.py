"""What each file of tests takes, in processor seconds: a busy machine takes no more of them.

`make durations` writes `tests/durations.txt`, so that growth is seen. The order of the tests and
`--cheapest` follow it.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent.parent
RECORD = TESTS / "durations.txt"
HEAD = """\
# Processor seconds of each file's tests, with the servers that they start: `make durations`.
# slow: what `make test-fast` leaves out of any file; nightly: what only `make test-all` runs.
#   tests     fast     slow  nightly
"""
KINDS = ("fast", "slow", "nightly")
"""A test is of the last of these that it is marked with, or else fast."""
SPENT = "processor seconds"


@dataclass
class Duration:
    """How many tests a file has, and the seconds of those of each kind."""

    tests: int
    fast: float
    slow: float
    nightly: float

    @property
    def mean(self) -> float:
        return (self.fast + self.slow + self.nightly) / self.tests

    def over(self, before: Duration | None) -> Duration:
        """Return these figures, with those `before` of kinds that were not run."""
        if before is None:
            return self
        seconds = [getattr(self, name) or getattr(before, name) for name in KINDS]
        return Duration(max(self.tests, before.tests), *seconds)


def recorded() -> dict[str, Duration]:
    """Return what is on record, by path relative to `tests`."""
    if not RECORD.exists():
        return {}
    rows = [row.split() for row in RECORD.read_text().splitlines() if not row.startswith("#")]
    return {name: Duration(int(tests), *map(float, seconds)) for tests, *seconds, name in rows}


def kind(item: pytest.Item) -> str:
    return next((name for name in reversed(KINDS) if item.get_closest_marker(name)), "fast")


@dataclass(frozen=True)
class Cheapest:
    """The tests of one kind, in the files that take least of them: `seconds` in all."""

    kind: str
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Cheapest:
        """Parse KIND=SECONDS."""
        wanted, _, seconds = text.partition("=")
        if wanted not in KINDS or not seconds.isdecimal():
            raise pytest.UsageError(f"{text!r}: expected {'|'.join(KINDS)}=SECONDS")
        return cls(wanted, float(seconds))

    def left_out(self, durations: dict[str, Duration]) -> set[str]:
        """Return the files on record that are too expensive."""
        names = sorted(durations, key=lambda name: self._of(durations[name]))
        totals = accumulate(self._of(durations[name]) for name in names)
        return {name for name, total in zip(names, totals, strict=True) if total > self.seconds}

    def _of(self, duration: Duration) -> float:
        seconds: float = getattr(duration, self.kind)
        return seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("durations")
    group.addoption(
        "--cheapest",
        metavar="KIND=SECONDS",
        help="run tests of a kind, fast, slow or nightly: the files that take these seconds of it",
    )
    group.addoption("--write-durations", action="store_true", help="write tests/durations.txt")


def pytest_configure(config: pytest.Config) -> None:
    given: str | None = config.getoption("cheapest")
    config.pluginmanager.register(_Order(Cheapest.parse(given) if given else None), "order")
    if config.getoption("write_durations"):
        config.pluginmanager.register(_Meter(), "meter")


class _Order:
    """Leaves out what is not wanted, and puts what takes long first where processes share it."""

    def __init__(self, cheapest: Cheapest | None) -> None:
        self._durations = recorded()
        self._cheapest = cheapest
        self._left_out = cheapest.left_out(self._durations) if cheapest else set()

    def pytest_report_header(self) -> str | None:
        if self._cheapest is None:
            return None
        return f"left out, since they take too long: {', '.join(sorted(self._left_out)) or 'none'}"

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if _name(collection_path) in self._left_out else None

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if self._cheapest is not None:
            others = [item for item in items if kind(item) != self._cheapest.kind]
            items[:] = [item for item in items if kind(item) == self._cheapest.kind]
            config.hook.pytest_deselected(items=others)
        if hasattr(config, "workerinput"):
            means = {name: duration.mean for name, duration in self._durations.items()}
            items.sort(key=lambda item: means.get(_name(item.path), 0.0), reverse=True)


class _Meter:
    """Measures in the process that runs the tests, and writes in the one that was started."""

    def __init__(self) -> None:
        self._spent: dict[str, Duration] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, bool, bool]:
        item.stash[_BEFORE] = processor_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            spent = processor_seconds() - item.stash[_BEFORE]
            report.user_properties.append((SPENT, [_name(item.path), kind(item), spent]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: list[tuple[str, Any]] = report.user_properties
        for name, its_kind, spent in (value for key, value in properties if key == SPENT):
            duration = self._spent.setdefault(name, Duration(0, 0.0, 0.0, 0.0))
            duration.tests += 1
            setattr(duration, its_kind, getattr(duration, its_kind) + spent)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            before = recorded()
            write(before | {name: its.over(before.get(name)) for name, its in self._spent.items()})


_BEFORE = pytest.StashKey[float]()


def write(durations: dict[str, Duration]) -> None:
    """Write the record, without files that are no longer there."""
    there = {name: its for name, its in sorted(durations.items()) if (TESTS / name).exists()}
    rows = [
        f"{d.tests:9d}{d.fast:9.1f}{d.slow:9.1f}{d.nightly:9.1f}  {n}\n" for n, d in there.items()
    ]
    RECORD.write_text(HEAD + "".join(rows))


def _name(path: Path) -> str:
    return str(path.relative_to(TESTS)) if path.is_relative_to(TESTS) else str(path)


def processor_seconds() -> float:
    """What this process and all that it started have used so far."""
    used, children = dict[int, int](), dict[int, list[int]]()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        children.setdefault(int(fields[1]), []).append(int(entry))
        used[int(entry)] = sum(map(int, fields[11:15]))  # its own, and its ended children's
    total, todo = 0, [os.getpid()]
    while todo:
        process = todo.pop()
        total += used.get(process, 0)
        todo += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")

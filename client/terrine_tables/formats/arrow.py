"""Arrow files, which Feather calls its own, and Arrow streams."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from terrine_tables.columns import Progress, ignore_progress, rows_at_a_time
from terrine_tables.formats.table import ReadOptions, TypedFile


class ArrowFile(TypedFile):
    """An Arrow file: batches of rows, and where each begins."""

    def __init__(self, path: Path, file: io.BufferedReader, options: ReadOptions) -> None:
        super().__init__(path, file, options)
        self._file = pa.ipc.open_file(file)
        self._describe(self._file.schema)

    @staticmethod
    def recognises(path: Path, file: io.BufferedReader) -> bool:
        """Whether a file starts as these do."""
        return file.peek(8).startswith(b"ARROW1")

    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = ignore_progress
    ) -> Iterator[Any]:
        """Record batches with these columns. Raises what pyarrow does."""
        total = self._file.num_record_batches
        for place in range(total):
            batch = self._rename(self._file.get_batch(place), names)
            progress(place + 1, total)
            yield from _in_slices(batch)


class ArrowStream(TypedFile):
    """An Arrow stream: batches of rows, one after another; how many it does not say."""

    def __init__(self, path: Path, file: io.BufferedReader, options: ReadOptions) -> None:
        super().__init__(path, file, options)
        self._file = pa.ipc.open_stream(file)
        self._describe(self._file.schema)

    @staticmethod
    def recognises(path: Path, file: io.BufferedReader) -> bool:
        """Whether a file starts as these do."""
        return file.peek(8).startswith(b"\xff\xff\xff\xff")

    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = ignore_progress
    ) -> Iterator[Any]:
        """Record batches with these columns. Raises what pyarrow does."""
        done = 0
        for stored in self._file:
            done += stored.num_rows
            progress(done, done)
            yield from _in_slices(self._rename(stored, names))


def _in_slices(batch: Any) -> Iterator[Any]:
    """A batch, some rows at a time."""
    rows = rows_at_a_time(batch.num_columns)
    yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))

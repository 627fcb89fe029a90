"""Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyarrow import parquet

from terrine_tables.columns import Progress, ignore_progress, rows_at_a_time
from terrine_tables.formats.table import BLOCK_BYTES, ReadOptions, TypedFile


class ParquetFile(TypedFile):
    """A Parquet file."""

    def __init__(self, path: Path, file: io.BufferedReader, options: ReadOptions) -> None:
        super().__init__(path, file, options)
        # A buffer: otherwise all of a row group's columns would be read at once.
        self._file = parquet.ParquetFile(file, buffer_size=BLOCK_BYTES)
        self._describe(self._file.schema_arrow)

    @staticmethod
    def recognises(path: Path, file: io.BufferedReader) -> bool:
        """Whether a file starts as these do."""
        return file.peek(8).startswith(b"PAR1")

    def batches(
        self, names: Sequence[str], header: bool = True, progress: Progress = ignore_progress
    ) -> Iterator[Any]:
        """Record batches with these columns. Raises what pyarrow does."""
        rows, columns, done = rows_at_a_time(len(names)), self._stored_names(names), 0
        for batch in self._file.iter_batches(batch_size=rows, columns=columns):
            done += batch.num_rows
            progress(done, self._file.metadata.num_rows)
            yield self._rename(batch, names)

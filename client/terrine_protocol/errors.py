"""The root of every error whose text is written for whoever meets it.

    TerrineError
    ├── DataError, StoreError, …    files: each where they are read
    ├── NoteError, ProofError       of the transparency log, also ValueErrors
    ├── ClientError                 what a student's program meets: `terrine_client.errors`
    └── ServiceError                what the service answers with: `terrine_server.errors`

A command prints the text of any of these, and calls all other errors a bug. Only the promise
(`terrine_server.privacy`), which imports nothing, has a root of its own: `ParameterError`.
"""

from __future__ import annotations

from terrine_protocol.names import show_text


class TerrineError(Exception):
    """An error whose text says what is wrong, what was expected and what to do.

    It quotes names of files and servers: what of them would act on a terminal is shown instead.
    """

    def __str__(self) -> str:
        return show_text(super().__str__())


class DataError(TerrineError):
    """Data cannot be used; the message says which file, where in it, and what was expected."""


class ClippedError(DataError):
    """More than a tenth of a column is clipped to the schema's range, or missing, or all of it."""

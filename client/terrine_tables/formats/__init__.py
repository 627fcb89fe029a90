"""How tables are stored: a module for each format. `files.py` finds out which one a file has."""

from __future__ import annotations

from pathlib import Path

from terrine_protocol.errors import DataError

# How the names of files end that may be tables, in small letters.
SUFFIXES = {
    "CSV in UTF-8": (".csv", ".tsv", ".tab", ".txt", ".data", ".test"),
    "JSON lines": (".jsonl", ".ndjson", ".json"),
    "Parquet": (".parquet", ".pq"),
    "Arrow (Feather)": (".arrow", ".arrows", ".feather", ".ipc"),
}
_KNOWN = {suffix for suffixes in SUFFIXES.values() for suffix in suffixes}


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is a table, even a packed one, which is not read."""
    return not _KNOWN.isdisjoint(suffix.lower() for suffix in Path(path).suffixes)


def explain_unread(path: Path) -> str:
    """Say what to do with a table in another format."""
    return (
        f"Tables are read as {', '.join(SUFFIXES)}. Unpack {path.name} if it is packed; convert it "
        "if it is a table in another format, in Python: "
        f"pandas.read_…({path.name!r}).to_parquet('table.parquet'), with the function of pandas "
        "for that format."
    )


def unread_format(path: Path) -> DataError:
    """What is wrong with a file that is a table in no format that is read."""
    return DataError(f"{path} is not a table that can be read. {explain_unread(path)}")

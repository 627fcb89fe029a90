"""Make the synchronous client of the asynchronous one: `make client` writes the file.

python tests/release/sync_client.py client/terrine_client
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

WORDS = {
    "AsyncClient": "Client",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "async def": "def",
    "async for": "for",
    "await ": "",
}
HEAD = '''"""The synchronous client, made of `async_client.py` by `make client`: edit that one."""
'''
PHRASES = {
    "Close it, or use `async with`.": "Threads may share it; close it, or use `with`.",
    "import Iterator, Iterable": "import Iterable, Iterator",
    "for item in page.items:\n                yield item\n": "yield from page.items\n",
    "[token for token in self._pages(_calls.tokens())]": "list(self._pages(_calls.tokens()))",
}
"""Where the two differ by more than words."""


def synchronous(source: str) -> str:
    """Return the text of the synchronous client."""
    _, _, text = source.partition('"""\n')
    pattern = re.compile("|".join(rf"\b{word}" for word in WORDS))
    text = pattern.sub(lambda found: WORDS[found[0]], text)
    for asynchronous, other in PHRASES.items():
        if asynchronous not in text:
            raise SystemExit(f"async_client.py has no longer: {asynchronous}")
        text = text.replace(asynchronous, other)
    return HEAD + text


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    made = synchronous((folder / "async_client.py").read_text())
    (folder / "client.py").write_text(made)

"""`make openapi`: write the OpenAPI document with which a release is compared.

python tests/release/openapi.py docs/openapi.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from terrine_server.app import create_app
from terrine_server.owner.sign_in import make_secret_key
from terrine_server.settings import Settings


def document() -> dict[str, Any]:
    """Return what `GET /openapi.json` returns."""
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(data_dir=Path(directory))
        make_secret_key(settings.secret_key_path)
        return create_app(settings).openapi()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    text = json.dumps(document(), indent=1, sort_keys=True, ensure_ascii=False)
    parser.parse_args().file.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

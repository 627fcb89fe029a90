"""A federation of the first release is read with the code of today, and a newer one is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from support.data import KEPT
from support.wording import refuses
from terrine_addons.federation.federations import load_federation
from terrine_models.storage.manifests import StoreError


def test_a_kept_federation_is_read() -> None:
    assert [owner.name for owner in load_federation(KEPT / "owners").owners] == ["st-a", "b"]


def test_a_newer_federation_is_refused(tmp_path: Path) -> None:
    copy = shutil.copytree(KEPT / "owners", tmp_path / "owners")
    document = json.loads((copy / "federation.json").read_text())
    (copy / "federation.json").write_text(json.dumps(document | {"format": "terrine-federation-2"}))
    with refuses(StoreError, "terrine-federation-2", "upkeep.md"):
        load_federation(copy)

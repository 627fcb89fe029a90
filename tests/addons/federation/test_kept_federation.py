"""Federations of earlier releases are read with the code of today, or refused with what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from support.data import KEPT
from support.databases import SECRET_KEY, migrated
from support.wording import holds, refuses
from terrine_addons.federation.federations import (
    FEDERATION,
    Federations,
    federation_digest,
    load_federation,
)
from terrine_models.storage.manifests import StoreError
from terrine_protocol import EnsembleFacts, ProjectOpen
from terrine_server.doctor import Severity, check_ensemble_files
from terrine_server.errors import EnsembleUnavailable
from terrine_server.labeling.pipeline import Labeling
from terrine_server.labeling.voters import AnyVoters
from terrine_server.ledger import Ledger
from terrine_server.metrics import Metrics
from terrine_server.owner.operations import open_project
from terrine_server.privacy.quoting import cap
from terrine_server.settings import Settings


def test_a_kept_federation_is_read() -> None:
    assert [owner.name for owner in load_federation(KEPT / "owners").owners] == ["st-a", "b"]


def test_a_newer_federation_is_refused(tmp_path: Path) -> None:
    copy = shutil.copytree(KEPT / "owners", tmp_path / "owners")
    document = json.loads((copy / "federation.json").read_text())
    (copy / "federation.json").write_text(json.dumps(document | {"format": "terrine-federation-2"}))
    with refuses(StoreError, "terrine-federation-2", "upkeep.md"):
        load_federation(copy)


class SharedFacts(EnsembleFacts):
    """As earlier releases wrote them of owners whose votes a second server added up."""

    aggregator_sigma: float = 40.0


def test_a_project_whose_votes_a_second_server_added_up_is_refused_and_verifies(
    tmp_path: Path,
) -> None:
    settings = Settings(data_dir=tmp_path)
    directory = settings.ensembles_dir / "owners"
    shutil.copytree(KEPT / "owners", directory)
    document = json.loads((directory / FEDERATION).read_text())
    facts = Federations().facts(directory)[1].model_dump(exclude_unset=True)
    aggregator = {"name": "aggregator", "url": "https://a.example", "sigma": 40.0}
    (directory / FEDERATION).write_text(json.dumps(document | {"aggregator": aggregator}))
    ledger = Ledger(migrated(settings.database), SECRET_KEY)
    ledger.ensembles.register(
        "owners",
        "ensembles/owners",
        federation_digest(directory),
        SharedFacts.model_validate(facts | {"kind": "shared"}),
        48,
        cap(20.0, 1e-6),
    )
    terms = {"name": "study", "ensemble": "owners", "epsilon": 2, "delta": 1e-7}
    terms["mechanism"] = {"name": "noisy_votes", "sigma": 12.0}
    open_project(ledger, ProjectOpen.model_validate(terms))
    service = Labeling(ledger, AnyVoters(settings), Metrics(), 64)
    asked = service.check("study", np.zeros((1, 4), np.float32))
    with refuses(EnsembleUnavailable, "owners", FEDERATION, "[aggregator]", "gather", "close"):
        service.answer("study", [asked])
    assert ledger.verifier.verify_project("study").ok
    assert ledger.verifier.verify_log().ok
    found = check_ensemble_files("owners", directory, federation_digest(directory))
    assert found.state is Severity.PROBLEM
    holds(found.found, FEDERATION, "[aggregator]")
    assert "backup" not in found.fix, "nobody altered it"

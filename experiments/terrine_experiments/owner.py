"""The data owner of a run: partitions the private data, trains teachers, opens a project."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from terrine_experiments.setup import Setup
from terrine_experiments.sources import Source
from terrine_models.data.arrays import DataError
from terrine_models.features.maps import PublicData
from terrine_models.storage.manifests import manifest_digest
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.manifests import Manifest
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import EnsembleRegister, ProjectOpen
from terrine_server.errors import NotFound
from terrine_server.ledger import Ledger, ProjectRecord
from terrine_server.owner.operations import LocalOwner, open_project, register_ensemble
from terrine_server.privacy import cap_order
from terrine_server.privacy.parameters import MAX_EPSILON
from terrine_server.progress import teachers_bar

ENSEMBLE = "teachers"
PROJECT = "study"


def trained(
    source: Source, public: PublicData, directory: Path, run: int, console: Console
) -> Manifest:
    """Train a run's teachers into `directory`, or return the manifest of those that are there.

    The private records are partitioned by the run's number, so no two runs have the same partition.
    Raises DataError if there are others, and what `train_ensemble` raises.
    """
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with teachers_bar(console, source.teachers) as on_trained:
            return train_ensemble(
                source.private,
                directory,
                name=f"{source.name}-teachers",
                teachers=source.teachers,
                config=source.config,
                public=public,
                seed=run,
                on_trained=on_trained,
            )
    manifest = load_manifest(directory)
    features = manifest.teacher.features
    fitted_on = features.fitted_on if features else None
    if (
        manifest.input != source.private.spec
        or manifest.classes != source.private.classes
        or (fitted_on is not None and fitted_on.sha256 != public.source.sha256)
    ):
        raise DataError(f"{directory} holds teachers of other data. Give another --out.")
    expected = source.config.teacher(source.private, features, public)
    if (manifest.teacher, manifest.teachers, manifest.seed) != (expected, source.teachers, run):
        raise DataError(
            f"{directory} holds teachers that were trained with other settings. Give another --out."
        )
    return manifest


def open_own_ledger(data: Path, teachers: Path, setup: Setup) -> tuple[LocalOwner, Ledger]:
    """Prepare a service on a directory of its own and register the teachers there, once.

    Raises DataError if it holds others.
    """
    owner = LocalOwner.of(data)
    ledger = owner.prepare()
    directory = owner.settings.ensembles_dir / ENSEMBLE
    if directory.exists():
        if manifest_digest(directory) != manifest_digest(teachers):
            raise DataError(
                f"{data} belongs to other teachers than {teachers}. Give another --out."
            )
    else:
        partial = directory.with_name(f"{ENSEMBLE}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(teachers, partial)
        partial.rename(directory)
    try:
        ledger.ensemble(ENSEMBLE)
    except NotFound:
        cap = EnsembleRegister(
            name=ENSEMBLE,
            epsilon=MAX_EPSILON,
            delta=setup.delta,
            order=cap_order(setup.epsilon, setup.delta),
        )
        register_ensemble(ledger, owner.settings, cap)
    return owner, ledger


def open_study(ledger: Ledger, setup: Setup, specification: Mapping[str, object]) -> ProjectRecord:
    """Open the run's project with the experiment's budget, or return the one that is open."""
    try:
        return ledger.project(PROJECT)
    except NotFound:
        request = {
            "name": PROJECT,
            "ensemble": ENSEMBLE,
            "mechanism": specification,
            "epsilon": setup.epsilon,
            "delta": setup.delta,
        }
        return open_project(ledger, ProjectOpen.model_validate(request))

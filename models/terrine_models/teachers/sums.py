"""Sums: a model that follows from noisy sums of public features. Nothing else of records is kept.

    from terrine_models.teachers.sums import add_up_records, build

    known = SumMap.fit(private.spec, public, norm=1024)
    exact = add_up_records(known, private)                    # private, and never on disk
    released = ReleasedSums(known, noisy, sigma, units, natural_rows(public))  # with noise
    build(private, Path("ensembles/adult"), name="adult", public=public, released=released)

Who adds noise, and how much, is not decided here. Every project on such an ensemble begins with a
charge for its release; what the model says is then post-processing, and so is the directory itself.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.features.bases import BLOCK_IMAGES
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import (
    IDENTITIES_FILE,
    Partition,
    StoreError,
    read_verified,
    save_tensors,
    sha256,
    versions,
)
from terrine_models.sums import ReleasedSums, SumMap, add_up, find_cut, fit_scores
from terrine_models.tables.designed import NATURAL_ROWS
from terrine_models.teachers.manifests import (
    SCRATCH_BYTES_PER_VALUE,
    Choose,
    EnsemblePlan,
    Manifest,
    StoredEnsemble,
    TeacherKind,
    Voting,
    VotingLimits,
    check_shapes,
    save_manifest,
    teacher_kind,
)
from terrine_models.teachers.people import People
from terrine_models.teachers.shards import check_encoding, check_new, unit_count
from terrine_protocol.files import new_directory, write_atomically
from terrine_protocol.projects import SumRelease

# What students get: the sums with noise, and all that is needed to use them. Public.
SUMS_FILE = "sums.npz"
MODEL_FILE = "teachers-00000.safetensors"
# Public rows at least: from fewer no map of features can be made that tells classes apart.
MIN_PUBLIC_ROWS = 100
# Records mapped at a time, of whole people: a person with more is a block alone.
BLOCK_RECORDS = 1 << 14


@teacher_kind
class SumTeachers(TeacherKind):
    """A model of noisy sums, as the manifest describes it: one teacher, who is no secret."""

    kind: Literal["sums"] = "sums"
    divisible = False

    def check(self, plan: EnsemblePlan) -> None:
        """Raise ValueError unless it says by which sums there is one model."""
        super().check(plan)
        if not isinstance(plan.release, SumRelease):
            raise ValueError("of sums it is known what was released")
        if plan.teachers != 1 or plan.release.classes != len(plan.classes):
            raise ValueError("of sums there is one model, of all classes")

    def check_files(self, manifest: Manifest) -> None:
        """Raise ValueError unless there are sums and a model, and nothing of records."""
        if set(manifest.files) - {IDENTITIES_FILE} != {SUMS_FILE, MODEL_FILE}:
            raise ValueError(f"sums have the files {SUMS_FILE} and {MODEL_FILE}")

    def voting(self, stored: StoredEnsemble, limits: VotingLimits, device: str) -> Voting:
        """The model, on the processor. Raises StoreError."""
        released = load_sums(stored)
        tensors = stored.tensors(MODEL_FILE)
        shape = (released.map.width, released.classes)
        where = str(stored.directory / MODEL_FILE)
        check_shapes(where, tensors, {"weights": shape, "biases": shape[1:]})
        weights, biases = tensors["weights"].numpy(), tensors["biases"].numpy()
        if any(
            each.dtype != np.float64 or not np.isfinite(each).all() for each in (weights, biases)
        ):
            raise StoreError(f"{where} holds weights that are no finite float64.")
        block = limits.block(stored.manifest.input.size * SCRATCH_BYTES_PER_VALUE, BLOCK_IMAGES)
        return Voting(_argmax(released.map, weights, biases), block, device="cpu")

    def inspect(self, directory: Path, manifest: Manifest) -> None:
        """Load it whole."""
        self.voting(StoredEnsemble.open(directory), VotingLimits(1, 1), "cpu")


def _argmax(known: SumMap, weights: NDArray[np.float64], biases: NDArray[np.float64]) -> Choose:
    def choose(x: torch.Tensor) -> torch.Tensor:
        scores = known.places(x.numpy()) @ weights + biases
        return torch.from_numpy(scores.argmax(axis=1)[:, None])

    return choose


def load_sums(stored: StoredEnsemble) -> ReleasedSums:
    """What was released of the records of an ensemble of sums, verified. Raises StoreError."""
    manifest, where = stored.manifest, stored.directory / SUMS_FILE
    if SUMS_FILE not in manifest.files:
        raise StoreError(f"{stored.directory} holds {manifest.kind}, not sums.")
    try:
        found = ReleasedSums.of_bytes(
            read_verified(stored.directory, SUMS_FILE, manifest.files[SUMS_FILE])
        )
    except DataError as error:
        raise StoreError(f"{where}: {error}") from None
    if (manifest.release, manifest.units, manifest.input) != (
        found.release,
        found.units,
        found.map.features.inputs,
    ):
        raise StoreError(f"{where} holds other sums than the manifest says.")
    return found


def fit_sum_map(data: Dataset, public: PublicData, norm: int, noise: float = 0.0) -> SumMap:
    """Return the map of records to features, by public rows alone; noise: as in `SumMap.fit`.

    Raises DataError for too few of them, or others than the records'; or if the schema of a table
    was fitted on the records.
    """
    check_encoding(data)
    if len(public.inputs) < MIN_PUBLIC_ROWS:
        raise DataError(
            f"{public.source.name} has {len(public.inputs):,} public rows. Sums are of features "
            f"that public rows suggest, and need {MIN_PUBLIC_ROWS} rows or more."
        )
    return SumMap.fit(data.spec, public, norm, noise)


def add_up_records(known: SumMap, data: Dataset) -> NDArray[np.int64]:
    """Return the exact sums of records, int64[d + 1, m] (`add_up`). Private.

    Blocks are of whole people, and what a person adds depends on nobody else's records: of people,
    not on how many those are (`SumMap.place_people`); else a record's place is its number.
    """
    people = np.arange(len(data)) if data.groups is None else data.groups
    order = np.argsort(people, kind="stable")
    firsts = np.flatnonzero(np.diff(people[order], prepend=-1))
    blocks = np.searchsorted(firsts, np.arange(0, len(order), BLOCK_RECORDS), side="right") - 1
    sums = np.zeros((known.width + 1, len(data.classes)), dtype=np.int64)
    for start, end in pairwise([*np.unique(firsts[blocks]), len(order)]):
        rows = order[start:end]
        if data.groups is None:
            points = known(data.inputs[rows])
        else:
            own = np.flatnonzero(np.diff(people[rows], prepend=-1)).tolist()
            points = known.round(known.place_people(data.inputs[rows], own))
        sums += add_up(points, data.labels[rows], people[rows], len(data.classes), known.norm)
    return sums


def natural_rows(public: PublicData) -> NDArray[Any]:
    """Return some of the public rows, which students get beside the sums."""
    every = -(-len(public.inputs) // NATURAL_ROWS)
    rows: NDArray[Any] = public.inputs[::every]
    return rows


def build(
    data: Dataset,
    out: Path,
    *,
    name: str,
    public: PublicData,
    released: ReleasedSums,
    key: bytes | None = None,
) -> Manifest:
    """Fit a model to sums that were released of `data`, and save both in directory `out`.

    Of the records themselves nothing is looked at, nor kept, but who is among them, where people
    have names: as digests under the owner's `key`, so that nobody who was forgotten comes back.
    `public`: rows to fit the model on; `released.natural` are some of them. Raises TrainingError
    (`out` exists) and DataError (public rows of another shape).
    """
    out = Path(out)
    check_new(out)
    found = fit_scores(released, public.inputs)
    weights, biases = found.weights, found.biases.copy()
    cut = find_cut(released, found, found.probabilities(released.map.places(public.inputs)))
    if cut is not None:
        biases[1] -= np.log(cut / (1 - cut))
    partition = None
    if data.groups is not None:  # a person may have several records, and has a name
        partition = Partition(
            recipe="groups", seed=0, group_column=data.group_column, smallest=1, largest=1
        )
    archive = released.to_bytes()
    with new_directory(out) as work:
        write_atomically(work / SUMS_FILE, archive, public=True)
        model = {"weights": torch.from_numpy(weights), "biases": torch.from_numpy(biases)}
        files = {
            SUMS_FILE: sha256(archive),
            MODEL_FILE: save_tensors(work / MODEL_FILE, model),
        }
        if key is not None and data.groups is not None:
            files[IDENTITIES_FILE] = People.of(data, key).save(work, key)
        manifest = Manifest(
            name=name,
            teacher=SumTeachers(),
            input=data.spec,
            encoding=data.encoding,
            image=data.image,
            classes=data.classes,
            teachers=1,
            units=unit_count(data),
            partition=partition,
            release=released.release,
            versions=versions(),
            files=dict(sorted(files.items())),
        )
        save_manifest(work, manifest)
    return manifest

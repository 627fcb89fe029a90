"""Importing an ensemble: teachers that were trained elsewhere, as ONNX files.

    from terrine_addons.onnx.teachers import Declared, import_ensemble

    declared = Declared(
        spec=InputSpec(shape=(20,), dtype="float32", low=0, high=1),
        classes=("home", "ward"),
        units=30_000,
        disjoint_by="one model per hospital; no patient is in two",
    )
    import_ensemble(sorted(Path("models").glob("*.onnx")), Path("ensembles/ward"), "ward", declared)

What privacy rests on, that no person's records are in two teachers' training data, cannot be seen
in the files. Their owner declares it, and the manifest keeps the declaration.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from terrine_addons.onnx.checking import CheckRequest, FileFinding, checked, read, refuse
from terrine_addons.onnx.guard import VOTING_BYTES, GuardedProcess, name_exit
from terrine_addons.onnx.models import Ints, ModelError, block_of, require_onnx
from terrine_addons.onnx.voting import OUT_OF_MEMORY_EXIT_CODE, VotingJob
from terrine_models.data.arrays import InputSpec
from terrine_models.features.public import PublicData
from terrine_models.storage.manifests import Partition, StoreError, read_verified, sha256, versions
from terrine_models.teachers.manifests import (
    VOTING_SECONDS,
    Manifest,
    StoredEnsemble,
    TeacherKind,
    Voting,
    VotingError,
    VotingLimits,
    save_manifest,
    teacher_kind,
)
from terrine_models.teachers.shards import check_new
from terrine_protocol.base import Sha256
from terrine_protocol.files import new_directory
from terrine_protocol.schema import TableSchema

# How long a process may take to start, and to load one model.
LOADING_SECONDS = 600.0


class GuardedTeachers:
    """n models that each choose one of m classes. Threads may share it; they take turns."""

    def __init__(
        self,
        directory: Path,
        files: Mapping[str, str],
        output: str | None,
        classes: tuple[str, ...],
        spec: InputSpec,
        threads: int,
        seconds: float = VOTING_SECONDS,
        by_index: bool = False,
    ) -> None:
        """Verify the files against their digests, and load them. Raises StoreError.

        `threads` models compute at a time; `seconds` are for a block of inputs. `by_index`: whether
        labels that are numbers are indices whatever the classes' names.
        """
        self._directory, self._files, self._seconds = directory, dict(files), seconds
        self._order = VotingJob(
            files=len(files),
            size=sum(_size(directory / name) for name in files),
            output=output,
            classes=classes,
            by_index=by_index,
            spec=spec,
            threads=threads,
        )
        self._turn = Lock()
        self._process: GuardedProcess | None = self._started()

    def choices(self, x: NDArray[np.generic]) -> Ints:
        """Every teacher's choice [b, n] on rows [b, *shape]. Raises VotingError or StoreError.

        The process is gone then, whatever the others of it would have said.
        """
        with self._turn:
            process, self._process = self._process, None
            if process is None or process.ended():
                process = self._started()
            try:
                found = process.ask(np.ascontiguousarray(x).tobytes(), self._seconds)
            except TimeoutError:
                process.end()
                raise VotingError(self._why(f"took longer than {self._seconds:g} s")) from None
            except (OSError, EOFError):
                raise VotingError(self._why(self._said(process.code()))) from None
            self._process = process
        return np.frombuffer(found, "<i4").reshape(len(x), -1).astype(np.int64)

    def _why(self, said: str) -> str:
        return (
            f"The imported teachers in {self._directory} {said} on a block of inputs, and their "
            "process was ended."
        )

    def _said(self, code: int) -> str:
        if code == OUT_OF_MEMORY_EXIT_CODE:
            return f"wanted more than {VOTING_BYTES * self._order.threads // 2**30} GiB of memory"
        return f"ended with {name_exit(code)}"

    def _started(self) -> GuardedProcess:
        try:
            require_onnx()
        except ModelError as error:
            raise StoreError(f"{self._directory} cannot be used: {error}.") from None
        process = GuardedProcess("terrine_addons.onnx.voting")
        where = self._directory
        try:
            process.tell(self._order.model_dump_json().encode(), LOADING_SECONDS)
            for name, digest in self._files.items():
                where = self._directory / name
                refused = process.ask(read_verified(self._directory, name, digest), LOADING_SECONDS)
                if refused:
                    raise StoreError(f"{where} cannot be used: {refused.decode()}.")
            refused = process.hear(LOADING_SECONDS)
        except (OSError, EOFError) as error:
            late = isinstance(error, TimeoutError)
            said = "took too long" if late else self._said(process.code())
            raise StoreError(f"{where} cannot be loaded: its process {said}.") from None
        if refused:
            raise StoreError(f"{self._directory} cannot be used: {refused.decode()}.")
        return process


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None


@teacher_kind
class ImportedTeachers(TeacherKind):
    """ONNX models that were trained elsewhere: what their owner says, and how they are read."""

    kind: Literal["onnx"] = "onnx"
    features: None = None
    disjoint_by: Annotated[str, Field(min_length=1, max_length=500)]
    """How nobody's records trained two of them, in the owner's words."""
    output: str | None = None
    """Name of the output that is used; null for the only one."""
    opsets: dict[str, Annotated[int, Field(ge=1)]]
    """The newest opset among them, of each domain of operators."""
    salt: Sha256
    """Random: their own files have none, and students see the manifest's digest (see
    `save_tensors`)."""
    suffix = "onnx"
    salted = False

    @property
    def declared_disjoint(self) -> str | None:
        """In the owner's words."""
        return self.disjoint_by

    def check_files(self, manifest: Manifest) -> None:
        """Raise ValueError unless each teacher has a file."""
        super().check_files(manifest)
        if len(manifest.teacher_files) != manifest.teachers:
            raise ValueError(f"{len(manifest.teacher_files)} files, expected {manifest.teachers}")

    def described(self) -> dict[str, str]:
        """Opsets, and what their owner says."""
        opsets = ", ".join(f"{name} {opset}" for name, opset in self.opsets.items())
        return {
            "opsets": f"{opsets}; output {self.output or 'the only one'}",
            "disjoint by": f"{self.disjoint_by} (declared by the owner, not checked)",
        }

    def voting(self, stored: StoredEnsemble, limits: VotingLimits, device: str) -> Voting:
        """Vote in a process of their own, on the CPU whatever the device. Raises StoreError."""
        manifest = stored.manifest
        guarded = GuardedTeachers(
            stored.directory,
            {name: manifest.files[name] for name in stored.files},
            self.output,
            manifest.classes,
            manifest.input,
            threads=torch.get_num_threads(),
            seconds=limits.seconds,
            by_index=manifest.partition is not None,  # shards have indices as labels
        )

        def choose(x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(guarded.choices(x.numpy()))

        return Voting(choose, block_of(manifest.input.shape), "cpu")

    def inspect(self, directory: Path, manifest: Manifest) -> None:
        """Check the files once more, in a process of their own."""
        request = CheckRequest(
            paths=tuple(str(directory / name) for name in manifest.teacher_files),
            spec=manifest.input,
            classes=manifest.classes,
            by_index=manifest.partition is not None,
            output=self.output,
        )
        for name, each in zip(manifest.teacher_files, checked(request), strict=True):
            if each.sha256 != manifest.files[name]:
                raise StoreError(f"{each.path} was altered: the manifest has another SHA-256.")


@dataclass(frozen=True)
class Declaration:
    """What the owner says of teachers that were trained elsewhere. All of it becomes public."""

    spec: InputSpec
    classes: tuple[str, ...]
    units: int
    """Training records of all teachers together, or people where one has several."""
    disjoint_by: str
    """How it is sure that no person is in two teachers' training data."""
    encoding: TableSchema | None = None
    output: str | None = None
    """The output to use, of models with several."""
    sharded: Partition | None = None
    """Of shards that `shards.split` wrote."""


def import_ensemble(
    paths: Sequence[Path],
    out: Path,
    name: str,
    declared: Declaration,
    public: NDArray[np.generic] | None = None,
) -> Manifest:
    """Check the files, copy them into directory `out` and write its manifest, or do nothing.

    The teachers are asked a synthetic probe, and `public` inputs [P, *shape] as well. Raises
    StoreError (files that cannot be used, by name), TrainingError (`out` exists) and DataError
    (`public` does not fit).
    """
    out = Path(out)
    check_new(out)
    if public is not None:
        PublicData.declare("the public inputs", public).check_fits(declared.spec)
    with new_directory(out) as work:
        files = _copy(paths, work)
        probe = None
        if public is not None:
            probe = work / "probe.npy"
            np.save(probe, public)
        request = CheckRequest(
            paths=tuple(str(work / name) for name in files),
            spec=declared.spec,
            classes=declared.classes,
            by_index=declared.sharded is not None,
            output=declared.output,
            probe=None if probe is None else str(probe),
        )
        found = checked(request, paths)
        if probe is not None:
            probe.unlink()
        manifest = _manifest(name, declared, files, found)
        save_manifest(work, manifest)
    return manifest


def _copy(paths: Sequence[Path], work: Path) -> dict[str, str]:
    """Copy the files; their new names, in order, with their digests."""
    files: dict[str, str] = {}
    why: dict[Path, str] = {}
    first: dict[str, Path] = {}
    for i, path in enumerate(paths):
        try:
            data = read(Path(path))
        except (ModelError, OSError) as error:
            why[path] = getattr(error, "strerror", None) or str(error)
            continue
        digest = sha256(data)
        if digest in first:
            why[path] = f"it is the same file as {first[digest]}: each teacher votes once"
        first.setdefault(digest, path)
        name = f"teachers-{i:05d}.onnx"
        files[name] = digest
        handle = os.open(work / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    refuse(why, len(paths))
    return files


def _manifest(
    name: str, declared: Declaration, files: dict[str, str], found: Sequence[FileFinding]
) -> Manifest:
    opsets = [each.opsets for each in found]
    return Manifest(
        name=name,
        teacher=ImportedTeachers(
            disjoint_by=declared.disjoint_by,
            output=declared.output,
            opsets={d: max(o.get(d, 0) for o in opsets) for o in opsets for d in o},
            salt=secrets.token_hex(32),
        ),
        input=declared.spec,
        encoding=declared.encoding,
        classes=declared.classes,
        teachers=len(files),
        units=declared.units,
        partition=declared.sharded,
        versions=versions("onnx", "onnxruntime"),
        files=files,
    )

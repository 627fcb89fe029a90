"""n teachers that vote: inputs [B, …] to vote counts [B, m], as fast as the device allows."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, vmap

from terrine_models.data.workers import side_by_side
from terrine_models.features.backbones import Backbone
from terrine_models.features.gradients import ENLARGED
from terrine_models.features.maps import FeatureMap
from terrine_models.features.prepared import prepare
from terrine_models.storage.manifests import (
    FEATURES,
    Manifest,
    StoreError,
    load_manifest,
    load_tensors,
)
from terrine_models.storage.onnx_models import block_of
from terrine_models.teachers.architectures import build_network
from terrine_models.teachers.onnx_guard import SECONDS, GuardedTeachers
from terrine_models.teachers.trees import Trees, check_types, pairs_within

Choose = Callable[[torch.Tensor], torch.Tensor]
"""Inputs [b, *shape] to every teacher's choice [b, n]."""

MEMORY = 256 * 2**20
LARGEST_BLOCK = {"heads": 128, "networks": 32, "forest": 128}
"""Large enough for efficient products, small enough that a single input is answered quickly."""
LARGEST_ON_CPU = LARGEST_BLOCK | {"heads": 32}
"""What a block of heads computes with stays in a processor's cache then; it is no slower by row."""
PIXEL_BYTES = 400
"""Scratch memory of oriented gradients, or of one network's layers, for each value of an input."""


@dataclass(frozen=True)
class Place:
    """The place of one process among several that vote together, each with some of the teachers.

    Heads are never divided: they share the work on their features, and one product, whose rounding
    depends on its size.
    """

    number: int = 0
    processes: int = 1

    def parts(self, manifest: Manifest) -> int:
        """Into how many parts the teachers are divided, by files. Several may vote with one."""
        return 1 if manifest.kind == "heads" else min(self.processes, len(manifest.teacher_files))

    def files(self, manifest: Manifest) -> list[str]:
        """Names of the files that hold the teachers of this place's part."""
        parts = self.parts(manifest)
        return manifest.teacher_files[self.number % parts :: parts]


ALONE = Place()


class Ensemble:
    """Trained teachers. Make one with `load`; threads may share it."""

    def __init__(
        self,
        manifest: Manifest,
        features: FeatureMap | None,
        teachers: Mapping[str, torch.Tensor],
        device: str,
        memory: int = MEMORY,
        imported: GuardedTeachers | None = None,
    ) -> None:
        self.manifest = manifest
        self.device = device
        self.block = _block_size(manifest, memory, device)
        """Inputs voted on at a time. Products round by size, so for heads and networks every block
        is padded to this size: the votes on an input do not depend on the others of its request."""
        teachers = {name: tensor.to(device) for name, tensor in teachers.items()}
        self.teachers: Mapping[str, torch.Tensor] = teachers
        """Parameters by name, teachers along axis 0. None of ONNX models."""
        self.imported = imported
        self.ways: dict[str, Choose]
        """Ways to compute the choices, by name; they agree up to rounding. The first is used: it
        follows from public facts alone, as time and rounding may depend on the weights."""
        if imported is not None:
            self.ways = {"guarded": _guarded(imported)}
        elif features is not None:
            self.ways = {"product": _product(features.to(device), **teachers)}
        elif manifest.kind == "forest":
            trees = Trees(teachers, manifest.input.shape[0], len(manifest.classes), manifest.name)
            pairs = pairs_within(memory // 2 // torch.get_num_threads(), trees.classes)
            self.ways = {"walk": _walk(trees, pairs)}
        else:
            # On two cores, 250 networks voted four times as fast one after the other.
            ways = {
                "loop": _loop(manifest, teachers),
                "batched": _batched(manifest, teachers, memory // self.block),
            }
            order = ("loop", "batched") if device == "cpu" else ("batched", "loop")
            self.ways = {name: ways[name] for name in order}
        self._voting = threading.Lock()  # one batch at a time: several would share its memory

    @classmethod
    def load(
        cls,
        directory: Path,
        device: str | None = None,
        *,
        memory: int = MEMORY,
        place: Place = ALONE,
        seconds: float = SECONDS,
    ) -> Ensemble:
        """Load an ensemble; every byte is verified against the manifest. Raises StoreError.

        `device` is a torch device; None takes CUDA if there is one. Forests and ONNX models vote on
        the CPU, whatever it is. `memory` bounds the bytes that voting uses beyond the weights, the
        result and the buffers of the libraries (some 20 MiB), as long as one input fits. Imported
        teachers vote in a process of their own, which may take `seconds` for a block of inputs and
        the memory that `onnx_limits.py` says. Only the teachers of `place` are loaded, and vote:
        the counts of all parts add up to those of all.
        """
        directory = Path(directory)
        manifest = load_manifest(directory)
        files = place.files(manifest)
        if manifest.foreign is not None:
            imported = GuardedTeachers(
                directory,
                {name: manifest.files[name] for name in files},
                manifest.foreign.output,
                manifest.classes,
                manifest.input,
                threads=torch.get_num_threads(),
                seconds=seconds,
            )
            return cls(manifest, None, {}, "cpu", memory, imported)
        parts = {
            name: load_tensors(directory, name, manifest.files[name])
            for name in (FEATURES, *files)
            if name in manifest.files
        }
        features = None
        if manifest.features is not None:
            source, tensors = manifest.features.backbone, parts.get(FEATURES, {})
            backbone = Backbone.load(directory, source) if source is not None else None
            features = FeatureMap(manifest.features, manifest.input, tensors, backbone)
            _check(directory / FEATURES, features.tensors, features.shapes())
        loaded = [parts[name] for name in files]
        for name, part in zip(files, loaded, strict=True):
            if manifest.kind == "forest":
                check_types(part, len(manifest.classes), str(directory / name))
                shape = (len(part["nodes"]), manifest.training.trees or 0)
                _check(directory / name, {"nodes": part["nodes"]}, {"nodes": shape})
            else:
                rows = len(next(iter(part.values()))) if part else 0
                expected = _teacher_shapes(manifest)
                _check(directory / name, part, {k: (rows, *s) for k, s in expected.items()})
        teachers = {key: torch.cat([part[key] for part in loaded]) for key in loaded[0]}
        found = len(teachers["nodes"] if "nodes" in teachers else next(iter(teachers.values())))
        if place == ALONE and found != manifest.teachers:
            raise StoreError(f"{directory} holds {found} teachers, expected {manifest.teachers}.")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        return cls(manifest, features, teachers, device, memory)

    def votes(self, x: NDArray[np.generic]) -> NDArray[np.int64]:
        """Vote counts [B, m] on inputs [B, *shape]; each row sums to the number of teachers.

        A teacher votes for its highest score, and for the lowest index among equal ones. Raises
        ValueError when shape or dtype do not match the manifest, and VotingError when imported
        teachers do not keep to their limits.
        """
        spec = self.manifest.input
        if x.shape[1:] != spec.shape or x.dtype != spec.dtype:
            raise ValueError(
                f"Inputs are {x.dtype} {list(x.shape)}, expected {spec.dtype} "
                f"[B, {', '.join(map(str, spec.shape))}]."
            )
        choose = next(iter(self.ways.values()))
        counts = np.empty((len(x), len(self.manifest.classes)), dtype=np.int64)

        def vote(start: int) -> None:
            rows = x[start : start + self.block]
            block = rows
            if self.manifest.kind != "forest":
                block = np.zeros((self.block, *spec.shape), dtype=spec.dtype)
                block[: len(rows)] = rows
            with torch.inference_mode():
                choices = choose(torch.from_numpy(block).to(self.device))
            counts[start : start + len(rows)] = _count(choices, counts.shape[1])[: len(rows)]

        starts = range(0, len(x), self.block)
        if self.device == "cpu":
            side_by_side(vote, starts)
        else:
            with self._voting:
                for start in starts:
                    vote(start)
        return counts


def _product(features: FeatureMap, weights: torch.Tensor, biases: torch.Tensor) -> Choose:
    """Heads: one matrix product for all teachers."""
    n, m, _ = weights.shape
    matrix, offset = weights.flatten(0, 1).T, biases.flatten()

    def choose(x: torch.Tensor) -> torch.Tensor:
        scores = torch.addmm(offset, features(x), matrix)
        return scores.view(len(x), n, m).argmax(2)

    return choose


def _guarded(imported: GuardedTeachers) -> Choose:
    """ONNX models, in a process of their own."""

    def choose(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(imported.choices(x.numpy()))

    return choose


def _walk(trees: Trees, pairs: int) -> Choose:
    """Forests, on the CPU."""

    def choose(x: torch.Tensor) -> torch.Tensor:
        rows: NDArray[np.float32] = x.float().cpu().numpy()
        return torch.from_numpy(trees.choices(rows, pairs))

    return choose


def _loop(manifest: Manifest, teachers: Mapping[str, torch.Tensor]) -> Choose:
    """Networks one after the other, frozen and with channels last."""
    networks = []
    for i in range(len(next(iter(teachers.values())))):
        with torch.device("meta"):
            network = build_network(manifest.architecture, manifest.input, len(manifest.classes))
        one = {name: tensor[i] for name, tensor in teachers.items()}
        network.load_state_dict(one, assign=True)
        network.requires_grad_(False)
        networks.append(_channels_last(network.eval()))

    def choose(x: torch.Tensor) -> torch.Tensor:
        prepared = prepare(x, manifest.input)
        if prepared.ndim == 4:
            prepared = prepared.contiguous(memory_format=torch.channels_last)
        return torch.stack([network(prepared).argmax(1) for network in networks], 1)

    return choose


def _channels_last(network: nn.Module) -> nn.Module:
    for parameter in network.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network


def _batched(manifest: Manifest, teachers: Mapping[str, torch.Tensor], memory: int) -> Choose:
    """Networks in parallel, as many at a time as `memory` bytes per input allow."""
    together = max(1, memory // (math.prod(manifest.input.shape) * PIXEL_BYTES))

    def choose(x: torch.Tensor) -> torch.Tensor:
        with torch.device("meta"):  # one per call: functional_call may not share it across threads
            network = build_network(manifest.architecture, manifest.input, len(manifest.classes))

        def one(parameters: dict[str, torch.Tensor], prepared: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = functional_call(network, parameters, prepared)
            return scores.argmax(1)

        all_of_them = vmap(one, in_dims=(0, None), out_dims=1, chunk_size=together)
        choices: torch.Tensor = all_of_them(dict(teachers), prepare(x, manifest.input))
        return choices

    return choose


def _count(choices: torch.Tensor, classes: int) -> NDArray[np.int64]:
    """Choices [b, n] to counts [b, m]."""
    rows = len(choices)
    offsets = torch.arange(rows, device=choices.device).unsqueeze(1) * classes
    counts = torch.bincount((choices + offsets).flatten(), minlength=rows * classes)
    array: NDArray[np.int64] = counts.view(rows, classes).cpu().numpy()
    return array


def _block_size(manifest: Manifest, memory: int, device: str) -> int:
    if manifest.kind == "onnx":
        return block_of(manifest.input.shape)
    values = math.prod(manifest.input.shape)
    each = 2 * 8 * manifest.teachers  # choices, and where they are counted
    if manifest.features is not None:
        each += 4 * manifest.teachers * len(manifest.classes)  # scores
        each += 2 * 4 * manifest.features.points  # distances
        each += 3 * 4 * manifest.features.landmarks  # distances, similarities, features
        if manifest.features.base == "oriented_gradients":
            values = max(values, ENLARGED**2)
    each += values * (8 if manifest.kind == "forest" else PIXEL_BYTES)
    if manifest.kind == "forest":
        memory //= 2  # the other half is for walks
    fitting = memory // each // torch.get_num_threads()
    largest = LARGEST_ON_CPU if device == "cpu" else LARGEST_BLOCK
    return max(1, min(largest[manifest.kind], fitting))


def _teacher_shapes(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    classes = len(manifest.classes)
    if manifest.features is not None:
        return {"weights": (classes, manifest.features.width), "biases": (classes,)}
    with torch.device("meta"):
        network = build_network(manifest.architecture, manifest.input, classes)
    return {name: tuple(value.shape) for name, value in network.named_parameters()}


def _check(
    path: Path, tensors: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]]
) -> None:
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != dict(expected):
        raise StoreError(f"{path} holds tensors {found}, expected {dict(expected)}.")

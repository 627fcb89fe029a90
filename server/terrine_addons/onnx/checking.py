"""The check of ONNX files, in a process of its own: `python -m terrine_addons.onnx.checking`.

A native parser reads files of others, and their models are asked. What that costs at most, and that
nothing but the check ends with it, is the guard's business.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from terrine_addons.onnx.guard import (
    LOADING_BYTES,
    VOTING_BYTES,
    GuardedProcess,
    confine,
    limit_memory,
    memory_for,
    name_exit,
    parent,
    receive,
    send,
)
from terrine_addons.onnx.models import (
    ModelError,
    OnnxModel,
    block_of,
    choose_classes,
    first_line,
    indices,
    labels_expected,
    require_onnx,
)
from terrine_addons.onnx.operators import check_operators, check_rows
from terrine_models.data.arrays import InputSpec
from terrine_models.storage.manifests import StoreError
from terrine_protocol.base import Record, list_names, map_class_numbers
from terrine_protocol.files import open_regular_file

# Bytes of one file.
MAX_FILE_BYTES = 512 * 2**20
# Bytes of address space that the check may take, except what the model does with inputs.
PARSING_BYTES = LOADING_BYTES + 8 * MAX_FILE_BYTES
# Synthetic inputs.
PROBE_INPUTS = 32
# Inputs that are asked together, to see whether one changes what is said of another.
PROBE_GROUP = 8
DOMAINS = {"": "ai.onnx", "ai.onnx": "ai.onnx", "ai.onnx.ml": "ai.onnx.ml"}
# Opset of ai.onnx from which onnxruntime promises to run models.
MIN_OPSET = 7
# Seconds until the check must be ready.
START_SECONDS = 120.0
# That one file may take.
CHECK_SECONDS = 120.0
# Refusals that an error names.
MAX_SHOWN_FINDINGS = 5


class CheckRequest(Record):
    """Which files to check, and as what."""

    paths: tuple[str, ...]
    spec: InputSpec
    role: Literal["teacher", "backbone"] = "teacher"
    classes: tuple[str, ...] = ()
    by_index: bool = False
    """Whether numbers as labels are indices even where classes are named by numbers."""
    output: str | None = None
    probe: str | None = None
    """An .npy file of public inputs [P, *shape] to ask as well."""


class FileFinding(Record):
    """What a file is; or, in `refused`, why it is not taken."""

    path: str
    refused: str | None = None
    sha256: str = ""
    output: str = ""
    opsets: dict[str, int] = Field(default_factory=dict)
    width: int = 0
    """Numbers in each output; 1 for a label."""


def main() -> None:
    """Check the files that the parent asks for."""
    import onnx  # noqa: F401 - now, and not in the time of the first file
    import onnxruntime  # noqa: F401

    asking = parent()
    request = CheckRequest.model_validate_json(receive(asking))
    confine()
    limit_memory(PARSING_BYTES)
    probe = probes(request)
    send(asking, b"")
    for path in request.paths:
        try:
            found = check(Path(path), request, probe)
        except (ModelError, OSError) as error:
            found = _refuse(path, getattr(error, "strerror", None) or str(error))
        except MemoryError:
            found = _refuse(
                path, f"it needs more than {VOTING_BYTES // 2**30} GiB beside its weights"
            )
        except Exception as error:  # of libraries that did not expect such a file
            found = _refuse(path, f"it cannot be checked: {first_line(error)}")
        send(asking, found.model_dump_json().encode())


def _refuse(path: str, why: str) -> FileFinding:
    """Why a file is not taken: names from it are in the text, and a terminal may show it."""
    shown = "".join(c if c.isprintable() else "\ufffd" for c in why[:400])
    return FileFinding(path=path, refused=shown)


def check(path: Path, request: CheckRequest, probe: NDArray[np.generic]) -> FileFinding:
    """What the file is. Raises ModelError, or OSError if it cannot be read."""
    data = read(path)
    opsets = check_content(data)
    model = OnnxModel(data, request.output)
    _check_input(model, request.spec)
    width = _check_answers(model, request, probe)
    if request.role == "teacher" and width > 1:
        _check_score_order(data, request)
    return FileFinding(
        path=str(path),
        sha256=hashlib.sha256(data).hexdigest(),
        output=model.output,
        opsets=opsets,
        width=width,
    )


def read(path: Path) -> bytes:
    """The bytes of a regular file of at most `MAX_FILE_BYTES`. Raises ModelError or OSError."""
    with open_regular_file(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > MAX_FILE_BYTES:
            raise ModelError(
                f"it has {found.st_size:,} bytes, at most {MAX_FILE_BYTES:,} are taken"
            )
        data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ModelError(f"it has more than {MAX_FILE_BYTES:,} bytes")
        return data


def check_content(data: bytes) -> dict[str, int]:
    """Refuse what a teacher has no need of; return the opset of each domain. Raises ModelError."""
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import defs

    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        raise ModelError("it is not an ONNX file") from None
    if not model.HasField("graph") or not model.opset_import:
        raise ModelError("it is not an ONNX file: it has no graph or no operator set")
    if model.functions or model.training_info:
        raise ModelError(
            "it defines functions or training of its own; inline the functions with "
            "onnx.inliner.inline_local_functions"
        )
    for message in messages_in(model):
        _check_message(message)
    opsets: dict[str, int] = {}
    newest = {"ai.onnx": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}
    for each in model.opset_import:
        domain = _domain(each.domain)
        if not (MIN_OPSET if domain == "ai.onnx" else 1) <= each.version <= newest[domain]:
            raise ModelError(
                f"it uses opset {each.version} of {domain}; {MIN_OPSET} to {newest['ai.onnx']} of "
                f"ai.onnx and 1 to {newest['ai.onnx.ml']} of ai.onnx.ml are known here"
            )
        opsets[domain] = each.version
    try:  # also whether each operator is in the opset of its domain
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # the checker's own, protobuf's, or of a file that neither expected
        raise ModelError(f"it is not a valid model: {first_line(error)}") from None
    check_rows(model, opsets.get("ai.onnx", MIN_OPSET), check_operators(model.graph))
    return opsets


def _check_message(message: Any) -> None:
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(message)):
        raise ModelError(
            "it holds fields that the installed onnx does not know; a newer onnx may: "
            "pip install --upgrade onnx"
        )
    match type(message).__name__:
        case "TensorProto" if message.data_location != 0 or message.external_data:
            raise ModelError(
                "its weights are in another file (external data). Put them into this one: "
                "onnx.save_model(onnx.load(path), path), or export with external_data=False"
            )
        case "AttributeProto" if message.HasField("g") or message.graphs:
            raise ModelError(
                "it has control flow (a graph inside an operator, as of If, Loop or Scan): "
                "the time that it takes would depend on the input"
            )


def _domain(name: str) -> str:
    if name not in DOMAINS:
        raise ModelError(
            f"it uses operators of the domain {name!r}; only those of ai.onnx and ai.onnx.ml are "
            "taken"
        )
    return DOMAINS[name]


def probes(request: CheckRequest) -> NDArray[np.generic]:
    """Inputs [P, *shape] to ask: the ends and the middle of the range, draws from it, public ones.

    Raises OSError or ValueError if the public ones cannot be read.
    """
    spec = request.spec
    draws = np.random.default_rng(0).uniform(0, 1, (PROBE_INPUTS, *spec.shape))
    draws[0], draws[1], draws[2] = 0, 1, 0.5
    made = spec.low + draws * (spec.high - spec.low)
    if spec.dtype == "uint8":
        made = np.round(made)
    found = np.clip(made, spec.low, spec.high).astype(spec.dtype)
    if request.probe is None:
        return found
    return np.concatenate([found, np.load(request.probe, allow_pickle=False)])


def _check_input(model: OnnxModel, spec: InputSpec) -> None:
    if not model.shape:
        raise ModelError("it does not say which shape its input has")
    fixed = model.shape[0]
    if isinstance(fixed, int) and fixed != 1:
        raise ModelError(
            f"it takes {fixed} rows at a time; export it with a batch of any size, or of 1"
        )
    fits = len(model.shape) == 1 + len(spec.shape) and all(
        not isinstance(size, int) or size == expected
        for size, expected in zip(model.shape[1:], spec.shape, strict=True)
    )
    if not fits:
        raise ModelError(
            f"its input has shape {list(model.shape)}, expected [batch, "
            f"{', '.join(map(str, spec.shape))}]"
        )


def _check_answers(model: OnnxModel, request: CheckRequest, probe: NDArray[np.generic]) -> int:
    """Ask the probe, twice, and rows of it beside others: only the row itself may matter.

    Returns how many numbers it answers for a row.
    """
    with _asking():
        if request.role == "teacher":  # a backbone is never asked about so many
            model(np.resize(probe, (block_of(request.spec.shape), *request.spec.shape)))
        first, again = np.asarray(model(probe)), np.asarray(model(probe))
    if first.dtype.kind not in "fiuOU":
        raise ModelError(
            f"its output {model.output} is {model.output_type}; expected scores (floating point) "
            "or labels. Of scikit-learn's, convert with the option zipmap=False"
        )
    scores = first.dtype.kind == "f"
    if request.role == "backbone":
        if not scores or first.ndim != 2 or first.shape[0] != len(probe) or not first.shape[1]:
            raise ModelError(f"its output is {first.dtype} {list(first.shape)}, expected [B, D]")
    else:
        choose_classes(first, len(probe), request.classes, request.by_index)
    if scores and not np.isfinite(first).all():
        row = int(np.flatnonzero(~np.isfinite(first).all(1))[0])
        which = f"public input {row - PROBE_INPUTS}" if row >= PROBE_INPUTS else f"probe {row}"
        raise ModelError(f"its output is not finite on {which}; are range and dtype right?")
    if not scores:
        known = indices(first.ravel(), request.classes, request.by_index)
        odd = first.ravel()[(known < 0) | (known >= len(request.classes))]
        if len(odd):
            raise ModelError(
                f"it gives the label {odd[0]!r}, which is none of the classes: "
                f"{labels_expected(request.classes, request.by_index)}"
            )
    if not np.array_equal(first, again):
        raise ModelError(
            "it answers the same input differently, by chance; export it for inference"
        )
    with _asking():
        apart = _keeps_rows_apart(model, probe)
    if not apart:
        raise ModelError(
            "what it answers to an input depends on what is asked beside it. Export it so that it "
            "takes each row of a batch by itself, or with a batch of 1"
        )
    if request.role == "backbone":
        with _asking():
            alone = [np.asarray(model(row[None])).ravel() for row in probe[:PROBE_GROUP]]
        if not all(map(_is_close, alone, first)):
            raise ModelError(
                "it answers otherwise about one row than about several; export it with a batch of "
                "any size"
            )
    return first.shape[1] if scores else 1


def _is_close(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether embeddings are equal except for rounding: products round by the number of rows.

    A backbone is only ever asked about one, so it must know what to do with one.
    """
    much = 1e-3 * float(np.abs(other).max())
    return one.shape == other.shape and np.allclose(one, other, 0, much)


def _check_score_order(data: bytes, request: CheckRequest) -> None:
    """Refuse a model whose scores are of the classes in another order. Raises ModelError.

    Only classifiers of ai.onnx.ml name the classes of their scores, and not where these are
    indices.
    """
    import onnx

    every = list(range(len(request.classes)))
    for node in onnx.ModelProto.FromString(data).graph.node:
        for attribute in node.attribute:
            if attribute.name == "classlabels_strings":
                labels = np.array([name.decode(errors="replace") for name in attribute.strings])
            elif attribute.name in ("classlabels_ints", "classlabels_int64s"):
                if request.by_index or not _are_numbered(request.classes):
                    continue
                labels = np.array(attribute.ints, dtype=np.int64)
            else:
                continue
            places = indices(labels, request.classes).tolist()
            if sorted(places) == every != places:
                raise ModelError(
                    f"its scores are of the classes {list_names(labels.astype(str).tolist())}, in "
                    f"this order, and not of {list_names(request.classes)}: name the classes in "
                    "its order"
                )


def _are_numbered(classes: Sequence[str]) -> bool:
    try:
        return map_class_numbers(classes) is not None
    except ValueError:
        return False


@contextmanager
def _asking() -> Iterator[None]:
    """Give a model memory for its answers, and raise ModelError for whatever it raises."""
    try:
        with memory_for(VOTING_BYTES):
            yield
    except MemoryError:
        raise
    except Exception as error:  # onnxruntime's errors have no class in common
        if "alloc" in str(error):
            raise MemoryError from None
        raise ModelError(f"it fails on inputs of this kind: {first_line(error)}") from None


def _keeps_rows_apart(model: OnnxModel, probe: NDArray[np.generic]) -> bool:
    """Whether it answers the same about rows while those beside them are replaced by extremes.

    The rows that stay are near the middle of the range; those beside them are so, too, or all at
    its lowest or highest end: then a scale, a mean or a maximum over the batch is another. Answers
    must be equal to the last bit, as the number of rows, by which products round, stays the same.
    """
    low, high, centre = probe[0], probe[1], probe[2].astype(np.float64)
    middle = (centre + (probe[3 : 3 + PROBE_GROUP] - centre) / 10).astype(probe.dtype)
    for kept in (slice(0, None, 2), slice(1, None, 2)):
        answers = []
        for beside in (middle, low, high):
            batch = np.empty_like(middle)
            batch[:] = beside
            batch[kept] = middle[kept]
            answers.append(np.asarray(model(batch))[kept])
        if any(not np.array_equal(each, answers[0]) for each in answers[1:]):
            return False
    return True


def findings(request: CheckRequest, seconds: float = CHECK_SECONDS) -> list[FileFinding]:
    """What each file is, in order. A file that kills the check, or outlasts it, is refused.

    Raises StoreError if the check itself cannot run: onnx or onnxruntime is missing.
    """
    try:
        require_onnx()
    except ModelError as error:
        raise StoreError(f"{error}.") from None
    found: list[FileFinding] = []
    while rest := request.paths[len(found) :]:
        found += _run(request.model_copy(update={"paths": rest}), seconds)
    return found


def checked(request: CheckRequest, names: Sequence[Path] | None = None) -> list[FileFinding]:
    """As `findings`. Raises StoreError unless all are taken; `names` are the user's."""
    found = findings(request)
    called = [Path(each.path) for each in found] if names is None else names
    refused = {
        path: each.refused
        for path, each in zip(called, found, strict=True)
        if each.refused is not None
    }
    refuse(refused, len(found))
    return found


def refuse(why: Mapping[Path, str], count: int) -> None:
    """Raise StoreError if any of `count` files is refused."""
    if not why:
        return
    shown = [f"{path}: {reason}." for path, reason in list(why.items())[:MAX_SHOWN_FINDINGS]]
    more = [f"… and {len(why) - MAX_SHOWN_FINDINGS} more."] if len(why) > MAX_SHOWN_FINDINGS else []
    raise StoreError("\n".join([f"{len(why)} of {count} files cannot be used:", *shown, *more]))


def _run(request: CheckRequest, seconds: float) -> list[FileFinding]:
    """Findings of the first files, up to and including one that ended the process."""
    process = GuardedProcess("terrine_addons.onnx.checking")
    found: list[FileFinding] = []
    try:
        try:
            process.ask(request.model_dump_json().encode(), START_SECONDS)
        except (OSError, EOFError):
            raise StoreError(
                "The check of ONNX files cannot start; is onnx installed whole?"
            ) from None
        for path in request.paths:
            try:
                found.append(FileFinding.model_validate_json(process.hear(seconds)))
            except TimeoutError:
                why = f"its check took longer than {seconds:g} s"
            except (OSError, EOFError):
                why = f"it ended the process that checked it ({name_exit(process.code())})"
            else:
                continue
            return [*found, FileFinding(path=path, refused=why)]
        return found
    finally:
        process.end()


def messages_in(message: Any) -> Iterator[Any]:
    """A protocol buffer message and all those in it."""
    yield message
    for kind, value in message.ListFields():
        if kind.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from messages_in(each)


if __name__ == "__main__":
    main()

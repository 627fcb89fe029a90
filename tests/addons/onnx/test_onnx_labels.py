"""What imported teachers call their classes: by number, by name, and in which order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.onnx_files import INPUTS, trees
from support.tables import NUMBERED_LABELS
from support.wording import holds, refuses
from terrine_addons.onnx import checking
from terrine_addons.onnx.checking import CheckRequest
from terrine_addons.onnx.models import ModelError, indices
from terrine_addons.onnx.teachers import Declaration, import_ensemble
from terrine_models.data.arrays import InputSpec
from terrine_models.storage.manifests import Partition
from terrine_models.teachers.ensemble import Ensemble


@pytest.mark.parametrize(("labels", "classes", "expected"), NUMBERED_LABELS)
def test_a_number_is_an_index_only_where_it_cannot_be_a_name(
    labels: list[int], classes: tuple[str, ...], expected: list[int] | None
) -> None:
    y = np.array(labels)
    if expected is not None:
        assert indices(y, classes).tolist() == expected
        return
    try:
        assert -1 in indices(y, classes)
    except ModelError as error:
        holds(str(error), classes[0])


def test_imported_teachers_name_their_classes_by_number(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(trees(labelled=True).SerializeToString())
    x = np.array([[0.4] * INPUTS, [0.6] * INPUTS], np.float32)  # the labels 0 and 1

    def votes(out: str, classes: tuple[str, ...], sharded: Partition | None = None) -> list[int]:
        spec = InputSpec(shape=(INPUTS,), dtype="float32", low=0, high=1)
        declared = Declaration(spec, classes, 3000, "one", output="label", sharded=sharded)
        import_ensemble([tmp_path / "m.onnx"], tmp_path / out, "made", declared)
        counts = Ensemble.load(tmp_path / out, device="cpu").votes(x)
        return [int(each) for each in np.asarray(counts).argmax(axis=1)]

    assert votes("one", ("2", "1", "0")) == [2, 1]
    shards = Partition(seed=0, recipe="rows", smallest=3000, largest=3000)
    assert votes("two", ("2", "1", "0"), shards) == [0, 1]


ORDERS: list[tuple[list[str] | None, tuple[str, ...], bool, bool]] = [
    (None, ("0", "1", "2"), False, True),
    (None, ("2", "1", "0"), False, False),
    (None, ("2", "1", "0"), True, True),
    (None, ("c", "b", "a"), False, True),
    (None, ("5", "6", "7"), False, True),
    (None, ("0", "1", "other"), False, True),
    (["a", "b", "c"], ("a", "b", "c"), False, True),
    (["a", "b", "c"], ("b", "a", "c"), False, False),
    (["a", "b", "c"], ("x", "y", "z"), False, True),
]
"""What a classifier calls its classes (None: 0, 1, 2), the names that are declared, whether its
labels were indices, and whether its scores may be in this order."""


@pytest.mark.parametrize(("own", "classes", "by_index", "taken"), ORDERS)
def test_scores_in_another_order_are_refused(
    tmp_path: Path, own: list[str] | None, classes: tuple[str, ...], by_index: bool, taken: bool
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(trees(labelled=True, names=own).SerializeToString())
    request = CheckRequest(
        paths=(str(path),),
        spec=InputSpec(shape=(INPUTS,), dtype="float32", low=0, high=1),
        classes=classes,
        by_index=by_index,
        output="scores",
    )
    if taken:
        assert checking.check(path, request, checking.probes(request)).width == 3
        return
    with refuses(ModelError, "order", *classes):
        checking.check(path, request, checking.probes(request))

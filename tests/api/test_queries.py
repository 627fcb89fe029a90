"""Which queries are valid, and when two queries are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from terrine_protocol import InputSpec
from terrine_server.errors import InvalidQuery
from terrine_server.labeling.queries import canonical_inputs, input_digests, query_digests
from terrine_server.labeling.strategies import check_probabilities

PIXELS = InputSpec(shape=(2, 2), dtype="uint8", low=0, high=16)
ROWS = InputSpec(shape=(3,), dtype="float32", low=-0.1, high=0.1)
ENSEMBLE = "ab" * 32


def accepted(inputs: Any, spec: InputSpec = PIXELS) -> np.ndarray:
    return canonical_inputs(np.asarray(inputs), spec, max_batch=4)


@pytest.mark.parametrize(
    "inputs",
    [
        np.float64(1),
        np.zeros((1, 4)),
        np.full((1, 2, 2), -1),
        np.full((1, 2, 2), 256 + 3),
        np.full((1, 2, 2), 2**63 - 1),
        np.full((1, 2, 2), 2**64 - 1, np.uint64),
    ],
    ids=lambda inputs: " ".join(repr(inputs).split()),
)
def test_pixels_of_another_shape_or_range_are_refused(inputs: Any) -> None:
    with pytest.raises(InvalidQuery):
        accepted(inputs)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.11, -0.11, 1e300, -1e300])
def test_features_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(InvalidQuery):
        accepted([[0, 0, value]], ROWS)


def test_the_range_includes_its_ends() -> None:
    accepted([[[0, 16], [16, 0]]])
    accepted(np.array([[0.1, -0.1, 0]]), ROWS)
    accepted(np.array([[0.1, -0.1, 0]], np.float32), ROWS)


def test_one_query_has_one_digest_however_it_was_sent() -> None:
    pixels = [[[1, 2], [3, 16]]]
    sent = [np.array(pixels, dtype) for dtype in ("u1", "<i8", ">i4", "<f8", ">f4", "<f2", "<u8")]
    sent.append(np.asfortranarray(sent[0]))
    assert len({input_digests(accepted(one), ENSEMBLE)[0] for one in sent}) == 1
    zeros = [np.array([[0.0, 0.05, 0]]), np.array([[-0.0, 0.05, 0]], ">f4")]
    assert len({input_digests(accepted(one, ROWS), ENSEMBLE)[0] for one in zeros}) == 1


def test_different_inputs_ensembles_and_baselines_have_different_digests() -> None:
    first, second = input_digests(accepted([[[1, 2], [3, 4]], [[1, 2], [3, 5]]]), ENSEMBLE)
    (elsewhere,) = input_digests(accepted([[[1, 2], [3, 4]]]), "cd" * 32)
    plain = query_digests([first], None)[0]
    based = query_digests([first, first], np.array([[10, 0], [9, 1]]))
    assert len({first, second, elsewhere, plain, *based}) == 6


@pytest.mark.parametrize(
    "probabilities",
    [
        np.full(3, 1 / 3),
        np.array([[0.5, 0.4985, 0]]),
        np.array([[1.5, -0.5, 0]]),
        np.array([[np.inf, 0, 0]]),
        np.array([[2**53, 0, 0]]),
    ],
    ids=lambda rows: " ".join(repr(rows).split()),
)
def test_rows_that_are_not_probabilities_are_refused(probabilities: Any) -> None:
    with pytest.raises(InvalidQuery):
        check_probabilities(probabilities, True, batch=1, classes=3)


def test_probabilities_may_have_the_rounding_errors_of_half_precision() -> None:
    rough = np.array([[0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]], np.float16)
    checked = check_probabilities(rough, True, batch=2, classes=3)
    np.testing.assert_array_equal(checked, rough.astype(np.float64))

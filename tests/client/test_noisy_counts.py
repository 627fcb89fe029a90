"""Noisy counts as arrays: in the order of the inputs, through batches, failures and files."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

from support.clients import FaultyServer, replies, works
from support.wording import refuses
from terrine_client import NO_COUNT, Client, Forbidden, Labels, Outcome, UnexpectedReply
from terrine_protocol import Budget, LabelResponse, LabelResult

TOKEN = "terrine_id_secret"


def inputs(count: int, first: int = 1) -> np.ndarray:
    """[count, 2], each with a different first number."""
    return np.arange(first, first + count, dtype=np.int64).repeat(2).reshape(count, 2)


@pytest.fixture
def counted(faulty: FaultyServer) -> FaultyServer:
    faulty.counted = True
    return faulty


def test_counts_are_an_array_with_a_row_for_each_input(counted: FaultyServer) -> None:
    with Client(counted.url, TOKEN, batch_size=2) as client:
        labels = client.label(inputs(5))
    assert labels.noisy_counts is not None
    assert labels.noisy_counts.dtype == np.int64
    assert labels.noisy_counts.tolist() == [[-k, k, 7] for k in range(1, 6)]
    assert labels.noise_sigma == 2.5
    assert labels.counts[Outcome.ANSWERED] == 5, "the number of inputs with each outcome, as before"


def test_where_there_is_no_answer_there_is_no_number_that_could_be_a_count(
    counted: FaultyServer,
) -> None:
    counted.capacity = 3
    with Client(counted.url, TOKEN, batch_size=2) as client:
        labels = client.label(inputs(7))
    assert labels.noisy_counts is not None
    assert labels.noisy_counts.shape == (7, 3)
    assert labels.answered.tolist() == [True] * 3 + [False] * 4
    assert (labels.noisy_counts[~labels.answered] == NO_COUNT).all()
    assert (labels.noisy_counts[labels.answered] != NO_COUNT).all()
    assert NO_COUNT == -(2**63)


def test_of_other_mechanisms_there_are_none(faulty: FaultyServer) -> None:
    with Client(faulty.url, TOKEN) as client:
        labels = client.label(inputs(3))
    assert labels.noisy_counts is None
    assert labels.noise_sigma is None


def test_an_error_hands_over_the_counts_received_until_then(counted: FaultyServer) -> None:
    with Client(counted.url, TOKEN, batch_size=2) as client:
        client.label(inputs(2))
        stopped = {"type": "/problems/forbidden", "title": "No", "status": 403, "detail": "No."}
        counted.faults.extend([works, replies(403, stopped)])
        with pytest.raises(Forbidden) as stop:
            client.label(inputs(4))
    partial = stop.value.partial
    assert partial is not None
    assert partial.noisy_counts is not None
    assert partial.noisy_counts.tolist() == [[-1, 1, 7], [-2, 2, 7]]
    assert partial.noise_sigma == 2.5


RESULT: dict[str, Any] = {"outcome": "answered", "label": 1, "charge": 1, "replayed": False}


@pytest.mark.parametrize(
    ("first", "second", "sigma"),
    [
        ({"counts": [1, 2]}, {}, 2.5),
        ({}, {"counts": [1, 2]}, 2.5),
        ({"counts": [1, 2]}, {"counts": [1, 2, 3]}, 2.5),
        ({"counts": [1, 2]}, {"counts": [2]}, 2.5),
        ({"counts": [1, 2]}, {"counts": [1, 2]}, None),
        ({"counts": [1.5, 2]}, {"counts": [1, 2]}, 2.5),
        ({"counts": "12"}, {"counts": [1, 2]}, 2.5),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_counts_that_no_server_sends_are_an_unexpected_reply(
    faulty: FaultyServer, first: Any, second: Any, sigma: float | None, batch_size: int
) -> None:
    """In one batch, or in one after the other."""
    results = [RESULT | first, RESULT | second]
    for start in range(0, 2, batch_size):
        body = {"results": results[start : start + batch_size], "budget": faulty.budget()}
        faulty.faults.append(replies(200, body | ({"noise_sigma": sigma} if sigma else {})))
    with Client(faulty.url, TOKEN, batch_size=batch_size) as client, pytest.raises(UnexpectedReply):
        client.label(inputs(2))


def answers(results: list[dict[str, Any]], faulty: FaultyServer, index: Any = None) -> Labels:
    found = [LabelResult.model_validate(result) for result in results]
    budget = Budget.model_validate(faulty.budget())
    return Labels.gather(found, LabelResponse(results=[], noise_sigma=2.5, budget=budget), index)


def test_a_label_weighs_in_a_frame_as_much_as_it_leads(faulty: FaultyServer) -> None:
    counted = [
        RESULT | {"counts": [6, 2, -3]},
        {"outcome": "refused"},
        RESULT | {"counts": [0, 4, 4]},
        RESULT | {"counts": [-1, -9, -9]},
    ]
    frame = answers(counted, faulty).to_frame()
    assert frame["weight"].tolist() == [1, 0, 0, 2], "of the leads 4, 0 and 8 the mean is 4"
    assert frame["outcome"].tolist() == ["answered", "refused", "answered", "answered"]
    assert frame["label"].isna().tolist() == [False, True, False, False]
    assert frame.columns.tolist() == ["outcome", "label", "weight", "count_0", "count_1", "count_2"]
    assert frame["count_1"].dropna().tolist() == [2, 4, -9]
    labelled = answers([RESULT, {"outcome": "abstained", "charge": 2}], faulty).to_frame()
    assert labelled.columns.tolist() == ["outcome", "label", "weight"]
    assert labelled["weight"].tolist() == [1, 0]
    until_an_error = answers([RESULT] * 2, faulty, pd.Index(["a", "b", "c"])).to_frame()
    assert until_an_error.index.tolist() == ["a", "b"]
    nobody = answers([{"outcome": "refused"}, RESULT | {"counts": [4, 4, 1]}], faulty).to_frame()
    assert nobody["weight"].tolist() == [0, 0]


def test_a_frame_needs_pandas_and_says_so(
    faulty: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refuses(ImportError, "pandas", "labels.training_set(x)"):
        answers([RESULT], faulty).to_frame()


def test_counts_become_rows_and_weights_that_a_classifier_takes(faulty: FaultyServer) -> None:
    labels = answers(
        [
            RESULT | {"counts": [6, 2, -3]},
            {"outcome": "refused"},
            RESULT | {"counts": [0, 4, 4]},
            RESULT | {"counts": [-1, -1, -9]},
        ],
        faulty,
    )
    x = np.arange(16).reshape(4, 2, 2)
    made = labels.training_set(x)
    assert made.X.tolist() == [[0, 1, 2, 3]] * 2 + [[8, 9, 10, 11]] * 2
    assert made.y.tolist() == ["0", "1", "1", "2"]
    assert made.sample_weight.tolist() == pytest.approx([6 * 3 / 16, 2 * 3 / 16] + [4 * 3 / 16] * 2)
    assert len(repr(made)) < 80
    with refuses(ValueError, 3, 4):
        labels.training_set(x[:3])


def test_labels_become_rows_of_the_same_weight(faulty: FaultyServer) -> None:
    labels = answers([{"outcome": "abstained"}, RESULT, RESULT | {"label": 0}], faulty)
    made = labels.training_set([[1.0], [2.0], [3.0]])
    assert made.X.tolist() == [[2.0], [3.0]]
    assert made.y.tolist() == ["1", "0"]
    assert made.sample_weight.tolist() == [1, 1]
    with refuses(ValueError, "answer"):
        answers([{"outcome": "abstained"}], faulty).training_set([[1.0]])
    with refuses(ValueError, 0):
        answers([RESULT | {"counts": [-1, -2]}], faulty).training_set([[1.0]])

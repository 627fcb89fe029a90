"""Arrays in, arrays out: encoding, batching, and the end of the budget."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from support.clients import FaultyServer, replies
from support.wording import holds, refuses
from terrine_client import AsyncClient, BudgetExhausted, Client, Outcome, PayloadTooLarge

TOKEN = "terrine_id_secret"


def images(count: int, first: int = 1) -> np.ndarray:
    """[count, 2, 2], each with a different first pixel."""
    return np.arange(first, first + count, dtype=np.int64).repeat(4).reshape(count, 2, 2)


@pytest.mark.parametrize("with_probabilities", [False, True])
@pytest.mark.parametrize(
    "x",
    [
        np.array([[3, 255], [7, 0]], dtype=np.uint8),
        np.array([[3, 0.1], [7, -2.5]], dtype=np.float32),
        np.array([[3, 0.1], [7, -2.5]], dtype=np.float64),
        np.array([[3, 1], [7, 2]], dtype=">i4"),
        np.asfortranarray(np.array([[3, 1, 4], [7, 2, 8]], dtype=np.float32)),
        np.array([[3, 1, 4, 1], [9, 9, 9, 9], [7, 2, 8, 2]], dtype=np.int16)[::2, ::-3],
        np.full((2, 1, 3, 2), 5, dtype=np.uint8),
    ],
    ids=["uint8", "float32", "float64", "big-endian", "Fortran", "strided", "images"],
)
def test_every_value_arrives(faulty: FaultyServer, with_probabilities: bool, x: np.ndarray) -> None:
    probabilities = np.array([[0.25, 0.75], [1 / 3, 2 / 3]]) if with_probabilities else None
    with Client(faulty.url, TOKEN) as client:
        client.label(x, probabilities)
    arrived = faulty.seen[0].arrays
    np.testing.assert_array_equal(arrived["inputs"], x)
    assert arrived["inputs"].shape == x.shape
    assert arrived["inputs"].dtype == x.dtype
    assert ("probabilities" in arrived) is with_probabilities
    if probabilities is not None:
        np.testing.assert_array_equal(arrived["probabilities"], probabilities)


def test_labels_are_arrays_in_the_order_of_the_inputs(faulty: FaultyServer) -> None:
    x = images(4, first=0)
    with Client(faulty.url, TOKEN, batch_size=3) as client:
        client.label(x[2:3])
        labels = client.label(x)
    assert labels.labels.dtype == np.int64
    assert labels.labels.tolist() == [-1, 1, 2, 3]
    assert labels.charges.tolist() == [2, 3, 1, 4]
    assert labels.outcomes.tolist() == ["abstained", "answered", "answered", "answered"]
    assert (labels.outcomes == Outcome.ABSTAINED).tolist() == [True, False, False, False]
    assert labels.replayed.tolist() == [False, False, True, False]
    assert labels.answered.tolist() == [False, True, True, True]
    assert labels.counts[Outcome.ANSWERED] == 3
    assert labels.counts[Outcome.REFUSED] == 0
    assert labels.budget.charges == 4
    assert len(labels) == 4
    assert repr(labels) == "<Labels of 4 inputs: 3 answered, 1 abstained>"
    assert labels.names.tolist() == [None, "class 1", "class 2", "class 3"]


def test_a_large_array_is_sent_in_batches(faulty: FaultyServer) -> None:
    with Client(faulty.url, TOKEN, batch_size=100) as client:
        labels = client.label(images(250))
    assert labels.labels.tolist() == list(range(1, 251))
    assert [len(seen.arrays["inputs"]) for seen in faulty.seen] == [100, 100, 50]


def test_batches_are_bounded_in_bytes_as_well(faulty: FaultyServer) -> None:
    x = np.ones((5, 2**20), dtype=np.float64)  # 8 MiB a row
    x[:, 0] = range(1, 6)
    with Client(faulty.url, TOKEN) as client:
        assert client.label(x).labels.tolist() == [1, 2, 3, 4, 5]
    assert [len(seen.arrays["inputs"]) for seen in faulty.seen] == [2, 2, 1]


def test_a_batch_that_is_too_large_is_halved_until_it_fits(faulty: FaultyServer) -> None:
    faulty.max_rows = 30
    with Client(faulty.url, TOKEN) as client:
        labels = client.label(images(100))
    assert labels.labels.tolist() == list(range(1, 101))
    sizes = [len(seen.arrays["inputs"]) for seen in faulty.seen]
    assert sizes == [100, 50, 25, 25, 25, 25]


def test_one_input_that_is_too_large_is_an_error(faulty: FaultyServer) -> None:
    faulty.max_rows = 0
    with Client(faulty.url, TOKEN) as client, pytest.raises(PayloadTooLarge):
        client.label(images(8))
    assert [len(seen.arrays["inputs"]) for seen in faulty.seen] == [8, 4, 2, 1]


def test_when_the_budget_is_spent_the_rest_is_refused_and_not_sent(faulty: FaultyServer) -> None:
    faulty.capacity = 15
    with Client(faulty.url, TOKEN, batch_size=10) as client:
        labels = client.label(images(1000))
    assert labels.labels[:15].tolist() == list(range(1, 16))
    assert labels.counts == {
        Outcome.ANSWERED: 15,
        Outcome.ABSTAINED: 0,
        Outcome.REINFORCED: 0,
        Outcome.EXHAUSTED: 0,
        Outcome.REFUSED: 985,
    }
    assert len(labels) == 1000
    assert (labels.charges[15:] == -1).all()
    assert labels.budget.affordable == 0
    assert len(faulty.seen) == 2


def test_answers_paid_for_earlier_are_returned_after_the_budget_is_spent(
    faulty: FaultyServer,
) -> None:
    faulty.capacity = 4
    with Client(faulty.url, TOKEN, batch_size=10) as client:
        client.label(images(100)[[55, 83]])
        labels = client.label(images(100))
    assert np.flatnonzero(labels.answered).tolist() == [0, 1, 55, 83]
    assert labels.replayed[[55, 83]].all()
    # 1-10, then eight batches until the last of the four charges has been seen; not the tenth.
    assert len(faulty.seen) == 1 + 9


def test_a_spent_budget_repeats_earlier_answers_wherever_they_are(faulty: FaultyServer) -> None:
    faulty.capacity = 2
    with Client(faulty.url, TOKEN, batch_size=10) as client:
        client.label(images(100)[[55, 83]])
        labels = client.label(images(100))
    assert np.flatnonzero(labels.answered).tolist() == [55, 83]


def test_a_budget_that_answers_nothing_is_an_error(faulty: FaultyServer) -> None:
    faulty.capacity = 0
    with Client(faulty.url, TOKEN, batch_size=10) as client, refuses(BudgetExhausted, "wrong"):
        client.label(images(30))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((0, 2)), "one"),
        (np.zeros(3), "row"),
        (7, "row"),
        (np.array([["a", "b"]]), "integers floats"),
        (np.array([[None, 1]]), "integers floats"),
        (np.array([[True, False]]), "integers floats"),
        (np.array([[1 + 2j, 1]]), "integers floats"),
        (np.array([[np.nan, 1]]), "NaN infinity"),
        (np.ma.array([[1.0, 2.0]], mask=[[True, False]]), "masked"),
        (np.array([[np.inf, 1]]), "NaN infinity"),
    ],
)
def test_what_is_not_a_batch_of_numbers_is_not_sent(
    faulty: FaultyServer, x: object, message: str
) -> None:
    label: Any = Client(faulty.url, TOKEN).label
    with refuses(ValueError, *message.split()):
        label(x)
    assert not faulty.seen


@pytest.mark.parametrize("probabilities", [np.ones(2), np.ones((3, 2)), np.ones((2, 2, 2))])
def test_probabilities_have_one_row_per_input(
    faulty: FaultyServer, probabilities: np.ndarray
) -> None:
    with Client(faulty.url, TOKEN) as client, refuses(ValueError, "[2, classes]"):
        client.label(images(2), probabilities)
    assert not faulty.seen


def test_progress_is_drawn_on_standard_error_and_not_on_standard_output(
    faulty: FaultyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty.capacity = 20
    with Client(faulty.url, TOKEN, batch_size=10) as client:
        client.label(images(1, first=0))
        assert capsys.readouterr() == ("", ""), "nothing unless it is asked for"
        client.label(images(40, first=0), progress=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "40/40" in printed.err
    holds(" ".join(printed.err.split()), 19, 1, 20)


async def test_async_calls_share_a_client_without_mixing_their_answers(
    faulty: FaultyServer,
) -> None:
    async with AsyncClient(faulty.url, TOKEN, batch_size=5) as client:
        answers = await asyncio.gather(
            *(client.label(images(20, first=1 + 20 * part)) for part in range(10))
        )
    for part, labels in enumerate(answers):
        assert labels.labels.tolist() == list(range(1 + 20 * part, 21 + 20 * part))
    assert len(faulty.book) == 200


async def test_a_cancelled_async_call_can_be_repeated(faulty: FaultyServer) -> None:
    faulty.faults.append(replies(429, b"", Retry_After="60"))
    async with AsyncClient(faulty.url, TOKEN) as client:
        asked = asyncio.create_task(client.label(images(3)))
        while not faulty.seen:
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await client.label(images(3))).labels.tolist() == [1, 2, 3]

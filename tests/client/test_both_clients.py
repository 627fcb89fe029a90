"""Each method is written once, and both clients have it as their programs and editors expect."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import pytest

from terrine_client import AsyncClient, Client
from terrine_protocol import Budget, Charge, ProjectInfo, TokenInfo

METHODS = sorted(name for name in dir(Client) if name[0] != "_" and name != "close")
LISTINGS = {"charges", "ledger"}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_the_same_arguments_and_docstring_in_both_clients(name: str) -> None:
    blocking, awaited = getattr(Client, name), getattr(AsyncClient, name)
    first, second = inspect.signature(blocking), inspect.signature(awaited)
    assert first.parameters == second.parameters
    assert blocking.__doc__ == awaited.__doc__
    assert blocking.__doc__
    if name in LISTINGS:
        assert second.return_annotation == f"Async{first.return_annotation}"
    else:
        assert first.return_annotation == second.return_annotation
    assert inspect.iscoroutinefunction(awaited) == (name not in LISTINGS)
    assert not inspect.iscoroutinefunction(blocking)


def test_both_clients_have_the_same_methods() -> None:
    awaited = {name for name in dir(AsyncClient) if not name.startswith("_")}
    assert awaited - {"aclose"} == set(METHODS)


def test_a_signature_says_what_is_returned_and_not_how() -> None:
    assert inspect.signature(Client.budget).return_annotation == "Budget"
    assert inspect.signature(Client.tokens).return_annotation == "list[TokenInfo]"
    assert inspect.signature(Client.charges).return_annotation == "Iterator[Charge]"
    label = inspect.signature(Client.label)
    assert list(label.parameters)[:3] == ["self", "x", "probabilities"]
    assert label.return_annotation == "Labels"


def test_type_checkers_know_what_each_client_returns() -> None:
    """Checked by mypy; nothing is sent."""

    def blocking(client: Client) -> None:
        assert_type(client.budget(), Budget)
        assert_type(client.project("study"), ProjectInfo)
        assert_type(client.tokens(), list[TokenInfo])
        assert_type(client.charges("study"), Iterator[Charge])
        client.project(nam="study")  # type: ignore[call-arg]

    async def awaited(client: AsyncClient) -> None:
        assert_type(await client.budget(), Budget)
        assert_type(await client.tokens(), list[TokenInfo])
        assert_type(client.charges("study"), AsyncIterator[Charge])
        await client.project(nam="study")  # type: ignore[call-arg]

    assert callable(blocking)
    assert asyncio.iscoroutinefunction(awaited)

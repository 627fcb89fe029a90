"""Something that happens while a charge is being made."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine, event


def come_between(engine: Engine, act: Callable[[], object]) -> None:
    """Act once, just before the next charge writes what follows from what it has looked up."""
    acted = False

    @event.listens_for(engine, "before_cursor_execute")
    def act_once(_: object, __: object, statement: str, *___: object) -> None:
        nonlocal acted
        if not acted and statement.startswith(("BEGIN IMMEDIATE", "WITH moved")):
            acted = True
            act()

"""What edits by hand come to without the secret key: a table of who notices which.

Each line of the table is one edit of a small ledger, past all triggers and constraints. Everybody
who believes its rows is then asked: `verify`, an anchor, the doctor, a server that starts, and the
requests that depend on the rows. No edit may go unnoticed, and no request may be answered in
another way than before, unless it is refused.
"""

from __future__ import annotations

import sys

import pytest
from edits import Hand
from tampering import World, edits, reply, requests, who

from terrine_server.errors import NotSealed
from terrine_server.ledger import Ledger, connect

BELIEVED = {
    # What is rolled back as a whole is an older copy: only an anchor tells.
    "projects, charges: the end cut off, with the older balance's seal",
    "log, tokens: a revocation undone in both, with older seals",
}
"""Edits after which requests are answered as they were earlier."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_edit_goes_unnoticed(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(database_url)
    hand = Hand(connect(database_url), database_url)
    assert not any(who(world).values()), who(world)
    with hand.edited(lambda _: None):
        expected = {name: reply(world, name) for name in requests(world)}
    done, unnoticed, believed = 0, [], []
    lines = [f"{'edit':<66} verify anchor doctor start request"]
    cases = list(edits(world))
    if database_url.startswith("postgresql"):
        cases = cases[::4]  # one in four: nothing that finds them depends on the database
    else:
        assert len(cases) >= 80
    for what, edit in cases:
        with hand.edited(edit) as let:
            assert let, what
            found = who(world)
            answers = {name: reply(world, name) for name in expected}
        refused = [n for n, a in answers.items() if a != expected[n] and "refused" in str(a)]
        wrong = [n for n, a in answers.items() if a != expected[n] and n not in refused]
        found["request"] = bool(refused)
        done += 1
        marks = "".join(f"{'yes' if yes else '-':^7}" for yes in found.values())
        lines.append(f"{what:<66}{marks}")
        if not any(found.values()):
            unnoticed.append(what)
        if wrong and what not in BELIEVED:
            believed.append((what, wrong))
    lines.append(f"{done} edits, {len(unnoticed)} that nobody notices")
    with capsys.disabled():
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert unnoticed == []
    assert believed == []


def test_another_secret_key_is_refused_at_the_start_and_changes_nothing(database_url: str) -> None:
    world, other = World(database_url), b"another key, of 32 bytes or more"
    found = who(world, other)
    assert (found["verify"], found["doctor"], found["start"]) == (True, True, True)
    ledger = Ledger(connect(database_url), other)
    with pytest.raises(NotSealed, match="sealed with another secret key than this one"):
        ledger.check_sealed()
    for name in requests(world):
        assert "refused" in str(reply(world, name, other)), name
    assert not any(who(world).values()), "nothing was changed"

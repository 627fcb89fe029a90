"""The tree in the database: every entry once, in order, whoever appends, dies, or is late."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from sqlalchemy import select

from support.ledgers import COUNTED, NOISY, answered, charge_one, counted, open_ledger, open_project
from support.processes import PATIENCE_SECONDS, start
from support.servers import root_of
from support.workers import ask_and_log, grow_until
from terrine_protocol import transparency as trees
from terrine_protocol.transparency import WIDTH, Tile, Tiles, commitment, tile_of
from terrine_server.api import shared
from terrine_server.api.shared import PublishedLog
from terrine_server.errors import DatabaseUnavailable, NotFound
from terrine_server.ledger import Ledger, transparency
from terrine_server.ledger.schema import administrative_log, charges, projects, tree_leaves


def charge(ledger: Ledger, name: str, first: int, count: int) -> None:
    project = ledger.projects.get(name)
    make = counted if project.noise_sigma is not None else answered
    charge_one(ledger, project.id, [make(f"{name} {i}") for i in range(first, first + count)])


def expected(ledger: Ledger) -> dict[int, list[bytes]]:
    """The commitment of every entry of the ledger, by source, in order."""
    log_key = ledger.tree.leaf_key(None)
    assert log_key is not None
    with ledger._access.engine.connect() as connection:
        rows = connection.execute(select(administrative_log.c.hash).order_by("seq"))
        found = {0: [commitment(log_key, hash) for hash in rows.scalars()]}
        for id, name in connection.execute(select(projects.c.id, projects.c.name)).all():
            query = select(charges.c.hash).where(charges.c.project_id == id).order_by("seq")
            key = ledger.tree.leaf_key(name)
            assert key is not None
            hashes = connection.execute(query).scalars()
            found[id] = [commitment(key, hash) for hash in hashes]
    return found


def all_leaves(ledger: Ledger) -> list[tuple[int, int, bytes]]:
    """Source, number and commitment of every leaf, in order; none is missing."""
    with ledger._access.engine.connect() as connection:
        rows = connection.execute(select(tree_leaves).order_by("position")).all()
    assert [row.position for row in rows] == list(range(len(rows)))
    return [(row.source, row.seq, row.entry) for row in rows]


def check_whole(ledger: Ledger) -> list[bytes]:
    """Check that every entry is in the tree once, in order; return its leaf hashes."""
    logged: dict[int, list[bytes]] = {source: [] for source in expected(ledger)}
    order = []
    for source, seq, entry in all_leaves(ledger):
        logged[source].append(entry)
        assert seq == len(logged[source])
        order.append(trees.leaf_hash(entry))
    assert logged == expected(ledger)
    return order


def test_every_entry_is_logged_once_and_in_order(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transparency, "MAX_NEW_LEAVES", 100)
    ledger = open_ledger(database_url)
    assert ledger.tree.leaf_key(None) is None
    open_project(ledger, 5000, NOISY, "one")
    open_project(ledger, 5000, COUNTED, "two")
    sizes = []
    for step, count in enumerate([1, 254, 3, 300, 511, 0, 140]):
        if count:
            charge(ledger, "one", step * 1000, count)
            charge(ledger, "two", step * 1000, 2)
        sizes.append(ledger.tree.grow())
        assert sizes[-1] == len(check_whole(ledger))
    assert sizes == sorted(sizes)
    leaves = check_whole(ledger)
    assert len(leaves) > 4 * WIDTH
    for size in sizes:
        assert ledger.tree.root(size) == root_of(leaves[:size])
        proof = ledger.tree.consistency(size, sizes[-1])
        before, after = root_of(leaves[:size]), root_of(leaves)
        trees.check_consistency(size, sizes[-1], before, after, proof)
    tiles = Tiles(sizes[-1], ledger.tree.tile)
    assert trees.subtree_root(0, sizes[-1], tiles.perfect) == root_of(leaves)
    for index in (0, 4):
        tile = tile_of(sizes[-1], 0, index)
        assert ledger.tree.tile(tile) == b"".join(leaves[index * WIDTH :][: tile.width])
        left, hashes = ledger.tree.tile(Tile(None, tile.index, tile.width)), []
        while left:  # entries, each with its length before it
            end = 2 + int.from_bytes(left[:2], "big")
            hashes.append(trees.leaf_hash(left[2:end]))
            left = left[end:]
        assert hashes == leaves[index * WIDTH :][: tile.width]
    for missing in (Tile(0, 5), Tile(2, 0, 1), Tile(1, 0, 5), Tile(None, 10**15), Tile(8, 10**17)):
        with pytest.raises(NotFound):
            ledger.tree.tile(missing)
    with pytest.raises(trees.ProofError):
        ledger.tree.root(sizes[-1] + 1)
    positions = ledger.tree.positions("two", 3, 4)
    assert [seq for seq, _ in positions] == [4, 5, 6, 7]
    key = ledger.tree.leaf_key("two")
    assert key is not None
    for record, (_, position) in zip(ledger.entries.list("two", 3, 4), positions, strict=True):
        entry = commitment(key, bytes.fromhex(record.hash))
        assert trees.leaf_hash(entry) == leaves[position]


def test_two_projects_with_the_same_entries_have_other_leaves(database_url: str) -> None:
    ledger = open_ledger(database_url)
    for name in ("one", "two"):
        open_project(ledger, 10, NOISY, name)
    ledger.tree.grow()
    assert ledger.tree.leaf_key("one") != ledger.tree.leaf_key("two")
    with pytest.raises(NotFound):
        ledger.tree.leaf_key("three")


def test_a_checkpoint_is_kept_only_in_the_place_of_the_last(database_url: str) -> None:
    ledger = open_ledger(database_url)
    ledger.tree.grow()
    assert ledger.tree.checkpoint() is None
    ledger.tree.save_checkpoint("one", None)
    ledger.tree.save_checkpoint("two", "one")
    for before in (None, "one"):
        with pytest.raises(DatabaseUnavailable):
            ledger.tree.save_checkpoint("three", before)
    assert ledger.tree.checkpoint() == "two"


@pytest.mark.slow
def test_processes_that_charge_grow_and_die_log_every_entry_once(
    database_url: str, tmp_path: Path
) -> None:
    ledger = open_ledger(database_url)
    one = open_project(ledger, 20_000, NOISY, "one")
    two = open_project(ledger, 20_000, NOISY, "two")
    stop = tmp_path / "stop"
    chargers = [
        start(ask_and_log, database_url, project.id, name, str(tmp_path / name))
        for project, name in ((one, "a"), (one, "b"), (two, "c"))
    ]
    growers = [start(grow_until, database_url, str(stop), 7) for _ in range(3)]
    for round in range(2):
        size = ledger.tree.grow()
        while ledger.tree.grow() < size + 20:
            pass
        for processes, work in ((growers, None), (chargers, round)):
            victim = processes.pop(0)
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            if work is None:
                growers.append(start(grow_until, database_url, str(stop), 5 + round))
            else:
                log = str(tmp_path / f"again {round}")
                chargers.append(start(ask_and_log, database_url, two.id, log, log))
    for charger in chargers:
        charger.kill()
        charger.join()
    stop.touch()
    for grower in growers:
        grower.join(timeout=PATIENCE_SECONDS)
        assert grower.exitcode == 0
    leaves = check_whole(ledger)
    assert ledger.tree.grow() == len(leaves) > 40
    assert ledger.tree.root(len(leaves)) == root_of(leaves)
    told = sum(
        len(path.read_text().splitlines())
        for path in tmp_path.iterdir()
        if path != stop and not path.name.startswith("terrine")
    )
    entries = sum(len(expected(ledger)[project.id]) for project in (one, two))
    assert told <= entries


def test_strangers_read_the_log_from_memory(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is asked for each tile once, and for the checkpoint once a second."""
    ledger = open_ledger(database_url)
    ledger.tree.grow()
    size = len(all_leaves(ledger))
    asked: list[Tile | None] = []
    really = ledger.tree.tile

    def tile(wanted: Tile) -> bytes:
        asked.append(wanted)
        return really(wanted)

    def checkpoint() -> str:
        asked.append(None)
        return "signed"

    monkeypatch.setattr(ledger.tree, "tile", tile)
    monkeypatch.setattr(ledger.tree, "checkpoint", checkpoint)

    async def read() -> None:
        log = PublishedLog(ledger)
        for level in (0, None):
            whole = await log.tile(Tile(level, 0, size))
            for width in range(1, size + 1):
                assert await log.tile(Tile(level, 0, width)) == really(Tile(level, 0, width))
                assert whole.startswith(await log.tile(Tile(level, 0, width)))
        with pytest.raises(NotFound):
            await log.tile(Tile(0, 0, size + 1))
        assert asked == [Tile(0, 0, size), Tile(None, 0, size), Tile(0, 0, size + 1)]
        asked.clear()
        notes = await asyncio.gather(*[log.checkpoint() for _ in range(50)])
        assert (set(notes), asked) == ({"signed"}, [None])
        asked.clear()
        monkeypatch.setattr(shared, "MAX_TILES", 1)
        few = PublishedLog(ledger)
        for level in (0, None, 0):
            await few.tile(Tile(level, 0, size))
        assert len(asked) == 3, "only so many are kept"

    asyncio.run(read())

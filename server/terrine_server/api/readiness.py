"""Whether a charge could be made now: found out once for all who ask at a time."""

from __future__ import annotations

import asyncio

from anyio import CapacityLimiter, to_thread
from sqlalchemy import Engine

from terrine_protocol import LogState
from terrine_protocol.transparency.policies import Policy
from terrine_server.errors import TerrineError
from terrine_server.labeling.voters import Voters
from terrine_server.ledger import (
    Ledger,
    check_definitions,
    check_rights,
    check_schema,
    check_writable,
)
from terrine_server.owner.checkpoints import log_state

SECONDS = 1.0
"""How long what was found is still true. Strangers may ask as often as they like."""


class Readiness:
    """Finds out in a thread of its own. Belongs to one event loop."""

    def __init__(
        self, engine: Engine, ledger: Ledger, voters: Voters, policy: Policy | None
    ) -> None:
        self._engine = engine
        self._ledger = ledger
        self._voters = voters
        self.policy = policy
        self._log: LogState | None = None
        self._thread = CapacityLimiter(1)
        self._found: asyncio.Task[TerrineError | None] | None = None
        self._until = 0.0

    async def check(self) -> LogState | None:
        """Raise what keeps queries from being answered, if anything does.

        Return the state of the transparency log, which keeps none.
        """
        now = asyncio.get_running_loop().time()
        if self._found is None or (self._found.done() and now > self._until):
            self._found = asyncio.create_task(self._find_out())
        error = await asyncio.shield(self._found)
        if error is not None:
            raise error.with_traceback(None)
        return self._log

    async def _find_out(self) -> TerrineError | None:
        try:
            return await to_thread.run_sync(self._problem, limiter=self._thread)
        finally:
            self._until = asyncio.get_running_loop().time() + SECONDS

    def _problem(self) -> TerrineError | None:
        try:
            check_schema(self._engine)
            check_definitions(self._engine)
            check_rights(self._engine)
            self._ledger.check_sealed()
            self._ledger.check_history()
            check_writable(self._engine)
            for ensemble in self._ledger.ensembles():
                self._voters.check(ensemble)
            self._log = log_state(self._ledger.checkpoint(), self.policy)
        except TerrineError as error:
            return error
        return None

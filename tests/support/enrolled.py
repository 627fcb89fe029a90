"""Students of a data owner's machine: their projects, their tokens, what they ask."""

from __future__ import annotations

from typing import Any

import numpy as np
from books import terms
from machine import Machine
from migrated import SECRET_KEY

from terrine_protocol import Role, TokenCreate
from terrine_server.ledger import Ledger, NewProject, connect
from terrine_server.owner.tokens import Tokens, load_secret_key

NOISY = {"name": "gnmax", "sigma": 400.0}


def student(
    machine: Machine, project: str, queries: int, ensemble: str = "digits"
) -> dict[str, str]:
    """Return the headers of a student whose project pays for exactly `queries`."""
    ledger = Ledger(connect(machine.database_url), SECRET_KEY)
    ledger.open_project(
        NewProject(project, ensemble, NOISY, terms(queries, NOISY, ledger.ensemble(ensemble).rule))
    )
    return bearer(machine, TokenCreate(role=Role.STUDENT, project=project))


def bearer(machine: Machine, request: TokenCreate) -> dict[str, str]:
    ledger = Ledger(connect(machine.database_url), SECRET_KEY)
    tokens = Tokens(ledger, load_secret_key(machine.data / "secret.key"))
    return {"Authorization": f"Bearer {tokens.create(request).token}"}


def question(number: int) -> dict[str, Any]:
    """Return a request with an input that is different for every number."""
    image = np.zeros((8, 8), dtype=np.uint8)
    image.flat[:4] = [number // 17**k % 17 for k in range(4)]
    return {"inputs": [image.tolist()]}

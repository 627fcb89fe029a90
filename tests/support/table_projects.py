"""A project of a table, whose private records are drawn here, on a service's machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from migrated import SECRET_KEY

from terrine_models.data.arrays import Dataset
from terrine_models.tables.loading import load_table
from terrine_models.teachers.training import train_ensemble
from terrine_protocol import (
    Column,
    EnsembleRegister,
    ProjectOpen,
    Role,
    TableSchema,
    TokenCreate,
)
from terrine_server.ledger import Ledger
from terrine_server.owner.operations import open_project, register_ensemble
from terrine_server.owner.sign_in import Tokens
from terrine_server.settings import Settings

SCHEMA = TableSchema(
    columns=(
        Column(name="dose", role="numeric", low=0, high=10, missing=5),
        Column(name="ward", role="categorical", values=("A", "B")),
        Column(name="smokes", role="boolean"),
        Column(name="ill", role="label", values=("no", "yes")),
    )
)


def frame(rows: int) -> pd.DataFrame:
    """Rows of the pool, with a column of its own that the schema does not know."""
    number = np.arange(rows)
    return pd.DataFrame(
        {
            "visit": [f"v{n}" for n in number],
            "ward": np.where(number % 2, "B", "A"),
            "dose": np.where(number % 7 == 6, np.nan, number % 10 + number / 1024),
            "smokes": number % 3 == 0,
        }
    )


def records(settings: Settings) -> Dataset:
    """Private records of the table: who takes more than 5 is ill."""
    private = frame(2400).assign(ill=lambda found: np.where(found["dose"] > 5, "yes", "no"))
    private.to_csv(settings.data_dir / "private.csv", index=False)
    return load_table(settings.data_dir / "private.csv", SCHEMA, lambda sentence: None)


def open_counted(ledger: Ledger, settings: Settings, name: str, data: Dataset) -> str:
    """Train 40 teachers, open a project of noisy counts of them, and return a student's token."""
    train_ensemble(data, settings.ensembles_dir / name, name=name, teachers=40)
    cap: dict[str, Any] = {"epsilon": 100.0, "delta": 1e-4, "population": name, "disjoint": True}
    register_ensemble(ledger, settings, EnsembleRegister.model_validate({"name": name, **cap}))
    terms = {"name": name, "ensemble": name, "epsilon": 90, "delta": 1e-5}
    mechanism = {"name": "noisy_votes", "sigma": 10.0}
    open_project(ledger, ProjectOpen.model_validate({**terms, "mechanism": mechanism}))
    request = TokenCreate(role=Role.STUDENT, project=name)
    return Tokens(ledger, SECRET_KEY).create(request).token

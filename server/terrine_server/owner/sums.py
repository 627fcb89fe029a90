"""Ensembles of sums: made of private records with the noise that a budget pays for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from terrine_server.planning.first_project import default_delta, plan_map, plan_sums

if TYPE_CHECKING:
    from terrine_models.data.arrays import Dataset
    from terrine_models.features.public import PublicData
    from terrine_models.teachers.manifests import Manifest


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SumSettings:
    """Noisy sums of public features by class, drawn once: a model of them answers, free."""

    epsilon: Annotated[
        float,
        Field(
            gt=0, description="What a project pays for the sums: its whole ε, at its first charge."
        ),
    ]
    delta: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="Its δ. By default a power of ten, at most a tenth of one over the people.",
        ),
    ] = None

    kind: ClassVar[str] = "sums"

    def paid_delta(self, units: int) -> float:
        """The δ that a project of so many people pays."""
        return default_delta(units) if self.delta is None else self.delta


def make_sums(
    private: Dataset,
    public: PublicData,
    out: Path,
    settings: SumSettings,
    *,
    name: str,
    key: bytes | None,
) -> Manifest:
    """Add private records up, once, with noise, and save in `out` what follows from the sums.

    The exact sums are in memory alone. What a killed process leaves has noise as well; the next run
    removes it and draws other noise: nobody was told of this one. Raises ParameterError for a
    budget that no noise suits, DataError for public rows that are too few or of another kind, and
    TrainingError.
    """
    from terrine_models.sums import ReleasedSums
    from terrine_models.teachers.shards import check_new, unit_count
    from terrine_models.teachers.sums import add_up_records, build, fit_sum_map, natural_rows

    check_new(out)
    units, epsilon = unit_count(private), settings.epsilon
    delta = settings.paid_delta(units)
    classes = len(private.classes)
    norm, noise = plan_map(epsilon, delta, classes, units)
    known = fit_sum_map(private, public, norm, noise)
    release = plan_sums(known.norm, known.width, classes, known.sha256, epsilon, delta)
    sums = release.add_noise(add_up_records(known, private))
    released = ReleasedSums(known, sums, release.sigma, units, natural_rows(public))
    return build(private, out, name=name, public=public, released=released, key=key)

"""What a project is opened with: an ensemble that is made, registered, and asked under a budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from terrine_models.data.arrays import DataError, Dataset
from terrine_models.features.public import PublicData
from terrine_models.tables.designed import (
    DesignedPool,
    Margins,
    count_cells,
    design_pool,
    margin_questions,
)
from terrine_models.teachers.kinds import load_manifest
from terrine_models.teachers.neighbours import NeighbourSettings, build
from terrine_models.teachers.shards import unit_count
from terrine_models.teachers.training import load_begun_pool, train_ensemble
from terrine_protocol import HistogramRelease, ProjectOpen, Role, TokenCreate
from terrine_server.errors import InvalidTerms, NotFound
from terrine_server.ledger import DEFAULT_POPULATION, Ledger, ProjectRecord
from terrine_server.owner.editions import records_key
from terrine_server.owner.operations import (
    open_project,
    quote_project,
    register_ensemble,
)
from terrine_server.owner.sign_in import Tokens, load_token_key
from terrine_server.owner.sums import SumSettings, make_sums
from terrine_server.planning.first_project import (
    DesignedProject,
    FirstProject,
    NeighbourProject,
    SumProject,
    label_mechanisms,
)
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.releases import Histograms
from terrine_server.progress import teachers_bar
from terrine_server.quickstart.choice import Choice
from terrine_server.quickstart.dialogue import Owner, Question, QuickstartError
from terrine_server.quickstart.records import PublicRows
from terrine_server.settings import Settings

# Of the token, for the owner's records.
LABEL = "quickstart"
# Kinds of ensembles of which no teacher is trained, by the project.
UNTRAINED = {NeighbourProject: "neighbours", SumProject: "sums"}


def open_first_project(
    choice: Choice, private: Dataset, ledger: Ledger, settings: Settings, owner: Owner
) -> ProjectRecord:
    """Do all that is missing until the project is open, asking before what cannot be undone.

    Raises QuickstartError once the owner disagrees, or for an ensemble that was made otherwise.
    """
    first, register, joined = choice.first, choice.register, choice.joined
    name = register.name
    directory = settings.ensembles_dir / name
    if directory.exists():
        _check_same(directory, private, first)
        owner.say(f"Made already: {directory}.")
    else:
        _make_ensemble(choice, private, settings, directory, owner)
    if not _is_registered(ledger, name):
        of = register.population or DEFAULT_POPULATION if joined is None else joined.name
        _ask(
            f"Fix the cap of {of} at ε = {first.cap.epsilon:g}, δ = {first.cap.delta:g}, and open "
            f"a project of ε = {first.epsilon:g}? Neither can be changed."
            if joined is None
            else f"Open a project of ε = {first.epsilon:g} under the cap of {of}? It cannot be "
            "changed.",
            owner,
        )
        register_ensemble(ledger, settings, register)
    return open_project(ledger, project_of(first, name))


def project_of(first: FirstProject, name: str) -> ProjectOpen:
    """Return what is opened, of the ensemble of the same name."""
    return ProjectOpen(
        name=name,
        ensemble=name,
        mechanism=first.spec,
        epsilon=first.epsilon,
        delta=first.delta,
        expected_pass_rate=first.pass_rate,
    )


def _is_registered(ledger: Ledger, name: str) -> bool:
    try:
        ledger.ensembles.get(name)
    except NotFound:
        return False
    return True


def _ask(question: str, owner: Owner) -> None:
    """Go on unless the owner disagrees; where nobody is asked, that was agreed before."""
    if owner.agrees(Question(question)) is False:
        raise QuickstartError("Nothing further was done. Run the same command to continue.")


def _check_same(directory: Path, private: Dataset, first: FirstProject) -> None:
    """Raise QuickstartError for an ensemble of other data, or one that begins with something else.

    Of sums, the map is not compared: it is fitted anew, and may differ in its last digits.
    """
    manifest = load_manifest(directory)
    have = manifest.teachers, manifest.units, manifest.input, manifest.classes
    kind = manifest.teacher.kind
    wanted = first.release.spec if isinstance(first, DesignedProject | SumProject) else None
    begins = None if manifest.release is None else manifest.release.model_dump(mode="json")
    for each in (begins, wanted):
        if each is not None:
            each.pop("map_sha256", None)
    if begins is not None and wanted is not None and begins != wanted:
        what = "sums" if kind == "sums" else "histograms"
        raise QuickstartError(
            f"{directory} begins with other {what}: the schema or --epsilon is not the one "
            "that it was made with. Change it back, or choose another --name."
        )
    same = have == (first.teachers, first.units, private.spec, private.classes)
    if (
        not same
        or (kind if kind in UNTRAINED.values() else None) != UNTRAINED.get(type(first))
        or begins != wanted
    ):
        raise QuickstartError(
            f"{directory} holds {manifest.teachers:,} teachers of {manifest.units:,} other units, "
            f"of the kind {kind}. Choose another --name, or give the data that they were made of."
        )


def _make_ensemble(
    choice: Choice, private: Dataset, settings: Settings, directory: Path, owner: Owner
) -> None:
    """Train the teachers, or place the records."""
    first, asked, name = choice.first, choice.data.asked, choice.register.name
    key = records_key(settings, make=True)
    public = asked.pool if isinstance(asked, PublicRows) else None
    if isinstance(first, NeighbourProject) and public is not None:
        _ask(f"Copy the records, as points with labels, to {directory}?", owner)
        near = NeighbourSettings(near=first.neighbours.near)
        with owner.console.status("Placing the records"):
            build(private, directory, name=name, public=public, settings=near, key=key)
        return
    if isinstance(first, SumProject) and public is not None:
        _ask(f"Add the records up, with noise, in {directory}?", owner)
        settings_of_sums = SumSettings(first.epsilon, first.delta)
        with owner.console.status("Adding the records up"):
            make_sums(private, public, directory, settings_of_sums, name=name, key=key)
        return
    _ask(f"Train {first.teachers:,} teachers in {directory}?", owner)
    pool = release = None
    if isinstance(first, DesignedProject):
        pool = _design_rows(private, public, first.release, first.rows, directory)
        release = HistogramRelease.model_validate(first.release.spec)
    with teachers_bar(owner.console, first.teachers) as on_trained:
        train_ensemble(
            private,
            directory,
            name=name,
            teachers=first.teachers,
            public=None if pool is not None else public,
            pool=pool,
            release=release,
            on_trained=on_trained,
            key=key,
        )


def _design_rows(
    private: Dataset, public: PublicData | None, release: Histograms, rows: int, directory: Path
) -> DesignedPool:
    """Design what is asked, from histograms with noise, which each project begins with.

    Nobody is told anything before a project's first charge has paid for them: until then, the rows
    are in the directory of the teachers alone, which is as private as the records.
    """
    begun = load_begun_pool(directory)
    if begun is not None:
        return begun
    if private.encoding is None:
        raise DataError(f"{private.name} is not a table: no rows can be designed for it.")
    questions = margin_questions(private.encoding)
    counts = release.add_noise(count_cells(questions, private))
    units = unit_count(private)
    margins = Margins.of_counts(questions, counts, sigma=release.sigma, units=units)
    natural = None if public is None else public.inputs.astype(np.float32)
    return design_pool(private.encoding, margins, rows, public=natural)


def make_student_token(ledger: Ledger, settings: Settings, project: str) -> str | None:
    """Return a token for the project's student; None if there was one, which is shown once."""
    if ledger.tokens.list(project):
        return None
    tokens = Tokens(ledger, load_token_key(settings))
    return tokens.create(TokenCreate(role=Role.STUDENT, project=project, label=LABEL)).token


def offer_labels(ledger: Ledger, record: ProjectRecord) -> Iterator[ProjectOpen]:
    """Yield how the same teachers answer with labels alone, of what is left of their cap.

    Nothing, where that would buy too few to learn from, or where neighbours vote.
    """
    facts, terms = record.ensemble.facts, record.terms
    if record.mechanism["name"] != NoisyVotes.name or facts.designed:
        return
    for mechanism in label_mechanisms(facts.teachers):
        opening = ProjectOpen.model_validate(
            {
                "name": f"{record.name}-labels",
                "ensemble": record.ensemble.name,
                "mechanism": mechanism,
                "epsilon": terms.epsilon,
                "delta": terms.delta,
            }
        )
        try:
            quoted = quote_project(ledger, opening)
        except InvalidTerms:  # it would not pay for one query
            continue
        if quoted.fits and quoted.warning is None:
            yield opening

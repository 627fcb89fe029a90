"""The mechanisms that a project can be opened with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from terrine_server.privacy.events import CostEvent
from terrine_server.privacy.mechanisms.base import Mechanism
from terrine_server.privacy.mechanisms.confident_gnmax import ConfidentGNMax
from terrine_server.privacy.mechanisms.gnmax import GNMax
from terrine_server.privacy.mechanisms.immutable import Immutable
from terrine_server.privacy.mechanisms.interactive_gnmax import InteractiveGNMax
from terrine_server.privacy.mechanisms.lnmax import LNMax
from terrine_server.privacy.mechanisms.neighbours import Neighbours
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.mechanisms.registration import MechanismKind
from terrine_server.privacy.mechanisms.stable import StableArgmax
from terrine_server.privacy.mechanisms.sums import SumAnswers
from terrine_server.privacy.parameters import ParameterError

# Entry points of other packages: mechanisms that no line of this one knows.
ENTRY_POINT_GROUP = "terrine.mechanisms"

MECHANISMS: Mapping[str, MechanismKind] = {
    kind.name: kind
    for kind in (
        LNMax,
        GNMax,
        NoisyVotes,
        Neighbours,
        ConfidentGNMax,
        InteractiveGNMax,
        Immutable,
        StableArgmax,
        SumAnswers,
    )
}
# Those that answer with labels alone and need nothing of the student, for a plan to choose from.
#
# `immutable` is not among them: it never costs less than the noisy maximum without extra votes.
COMPARED = (ConfidentGNMax.name, GNMax.name, LNMax.name, StableArgmax.name)


def build_mechanism(spec: Mapping[str, object], *, teachers: int, classes: int) -> Mechanism:
    """Return the mechanism that `spec` describes by its "name" and parameters.

    Raises `ParameterError`, naming the parameter, if the specification does not work with an
    ensemble of this size.
    """
    parameters = dict(spec)
    name = parameters.pop("name", None)
    kind = MECHANISMS[str(name)] if name in MECHANISMS else _load_foreign(name)
    try:
        made = kind(teachers=teachers, classes=classes, **parameters)
    except TypeError as error:
        raise ParameterError(f"The parameters of {name} are not {sorted(parameters)}.") from error
    priced = all(isinstance(event, CostEvent) for event in made.events().values())
    if made.name != name or not priced:
        raise ParameterError(f"{name} is another's name, or has events that are not cost events.")
    return made


def _load_foreign(name: object) -> Callable[..., Mechanism]:
    """Return a mechanism of another package: an entry point called OWNER.NAME."""
    foreign = isinstance(name, str) and "." in name
    found = list(entry_points(group=ENTRY_POINT_GROUP, name=str(name))) if foreign else []
    if len(found) != 1:
        why = "belongs to no installed package" if not found else "belongs to several packages"
        known = ", ".join(MECHANISMS)
        raise ParameterError(
            f"No mechanism is called {name!r}. Use one of {known}."
            if not foreign
            else f"The mechanism {name} {why} here: it is an entry point of {ENTRY_POINT_GROUP}."
        )
    try:
        kind: Callable[..., Mechanism] = found[0].load()
    except Exception as error:
        raise ParameterError(f"The mechanism {name} cannot be loaded: {error!r}.") from error
    return kind

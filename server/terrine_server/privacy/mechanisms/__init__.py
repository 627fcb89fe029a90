"""The mechanisms, one per file, and the function that builds one from its specification."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from terrine_server.privacy.mechanisms.base import Mechanism
from terrine_server.privacy.mechanisms.confident_gnmax import ConfidentGNMax
from terrine_server.privacy.mechanisms.gnmax import GNMax
from terrine_server.privacy.mechanisms.immutable import Immutable
from terrine_server.privacy.mechanisms.interactive_gnmax import InteractiveGNMax
from terrine_server.privacy.mechanisms.lnmax import LNMax
from terrine_server.privacy.mechanisms.neighbours import Neighbours
from terrine_server.privacy.mechanisms.noisy_votes import NoisyVotes
from terrine_server.privacy.mechanisms.stable import StableArgmax
from terrine_server.privacy.mechanisms.stable_svt import StableSVT
from terrine_server.privacy.parameters import ParameterError

MECHANISMS: Mapping[str, Callable[..., Mechanism]] = {
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
        StableSVT,
    )
}


def build_mechanism(spec: Mapping[str, object], *, teachers: int, classes: int) -> Mechanism:
    """Return the mechanism that `spec` describes by its "name" and parameters.

    Raises `ParameterError`, naming the parameter, if the specification does not work with an
    ensemble of this size.
    """
    parameters = dict(spec)
    name = parameters.pop("name", None)
    if name not in MECHANISMS:
        known = ", ".join(MECHANISMS)
        raise ParameterError(f"No mechanism is called {name!r}. Use one of {known}.")
    try:
        return MECHANISMS[str(name)](teachers=teachers, classes=classes, **parameters)
    except TypeError as error:
        raise ParameterError(f"The parameters of {name} are not {sorted(parameters)}.") from error

"""Add-ons: packages that add to Terrine, and that it runs without.

An entry point of the group `terrine.addons` names an `Addon`, as one of `terrine.mechanisms` names
a mechanism. Nothing else knows which there are. What an add-on names as `module:attribute` is
imported when it is needed, so that none costs anything where it is not used. All that they add is
said here, for models as for the server, since a room can ask only those below it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import Any

GROUP = "terrine.addons"


@dataclass(frozen=True, kw_only=True)
class Addon:
    """What an add-on adds. Every text is a `module:attribute`, unless it says otherwise."""

    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By what is typed, as `audit` or `ensemble import`: a function, or a group of commands
    (`Typer`), and the line that help has of it."""
    in_server: Collection[str] = ()
    """Which of these are for whoever runs a server, in whose container Compose runs them."""
    extras: Mapping[str, str] = field(default_factory=dict)
    """By words of a command line: the extra of the distribution that it needs, if not `server`."""
    settings: str | None = None
    """A class of settings (`terrine_server.settings.Variables`), with the variables that are its
    own: a server's and its commands', if it derives from `Settings`."""
    teachers: str | None = None
    """A module that makes kinds of teacher known (`teacher_kind`)."""
    backbones: str | None = None
    """A class of public backbones (`features.backbones.Backbone`)."""
    trainers: Mapping[str, str] = field(default_factory=dict)
    """By the place of `ensemble train --on`: a context of settings, which yields a `Trainer`."""
    ensembles: str | None = None
    """An `EnsembleFormat`: directories with another document than a manifest."""
    voters: Mapping[str, str] = field(default_factory=dict)
    """By the kind of an ensemble: what makes `Voters` of settings."""
    probes: Mapping[str, str] = field(default_factory=dict)
    """Likewise: what asks those who vote elsewhere, of a directory, and returns a `Reached`."""
    local_voters: Mapping[str, str] = field(default_factory=dict)
    """Likewise by the setting TERRINE_VOTERS, of ensembles whose files are here."""
    issuer: str | None = None
    """What makes an `Issuer` to sign in through, of settings; None where they name none."""
    pages: str | None = None
    """A router of pages for admins and auditors."""
    project_buttons: Mapping[str, str] = field(default_factory=dict)
    """By the path, below a project's, of one of these pages: what the button to it says."""
    callbacks: str | None = None
    """A router of addresses to which other sites send browsers, with parameters of their own."""
    templates: str | None = None
    """The package whose folder `templates` has those of `pages`."""
    start: str | None = None
    """Raises an error if the server must not start with these settings."""
    checks: str | None = None
    """Yields findings of `terrine doctor` on settings."""


@cache
def addons() -> Mapping[str, Addon]:
    """The add-ons that are installed, by name. One whose package was removed is not there."""
    found = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        package = entry.module.partition(".")[0]
        if find_spec(package) is not None and find_spec(entry.module) is not None:
            found[entry.name] = entry.load()
    return found


def load_added(what: str) -> Iterator[Any]:
    """Import and yield what the add-ons have as this field of `Addon`."""
    for addon in addons().values():
        reference = getattr(addon, what)
        if reference is not None:
            yield resolve_name(reference)


def added_names(what: str) -> list[str]:
    """Return under which names the add-ons have something in this field of `Addon`, sorted."""
    return sorted(name for addon in addons().values() for name in getattr(addon, what))


def load_added_as(what: str, name: str) -> Any | None:
    """Import what an add-on has under this name in this field of `Addon`; None if none has it."""
    for addon in addons().values():
        if name in getattr(addon, what):
            return resolve_name(getattr(addon, what)[name])
    return None

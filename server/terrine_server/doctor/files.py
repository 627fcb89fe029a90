"""Checks of settings, device, directories and secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import ValidationError

from terrine_server.doctor.finding import Finding, Severity
from terrine_server.owner.operations import RESTORING
from terrine_server.owner.tokens import SecretKeyError, load_secret_key
from terrine_server.settings import Settings

LOW_DISK, FULL_DISK = 2**30, 2**26
"""Bytes. Below the first, act soon; below the second, answers are about to stop."""
FOREIGN_VARIABLES = {"TERRINE_DEBUG", "TERRINE_TOKEN", "TERRINE_URL", "TERRINE_SHARED_DATA"}
"""Variables that the command line, the student and the tests read, not the server."""


def unusable(error: ValidationError) -> Iterator[Finding]:
    """Yield a finding for each invalid setting, without its value."""
    for item in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, item["loc"])).upper()
        found = f"TERRINE_{where}: {item['msg']}." if where else item["msg"]
        found = found.replace("Value error, ", "")
        yield Finding("settings", Severity.PROBLEM, found, "docs/api.md lists the settings")


def variables(environment: Mapping[str, str]) -> Finding:
    """Check that every TERRINE_* variable is one that Terrine reads."""
    known = {f"TERRINE_{name.upper()}" for name in Settings.model_fields} | FOREIGN_VARIABLES
    unknown = sorted(n for n in environment if n.startswith("TERRINE_") and n not in known)
    if unknown:
        named = ", ".join(unknown)
        found = f"The environment sets {named}, which Terrine does not know."
        return Finding("settings", Severity.WARNING, found, f"unset {' '.join(unknown)}")
    return Finding(
        "settings", Severity.OK, "Every TERRINE_* variable is a setting with a valid value."
    )


def device(name: str | None) -> Finding:
    """Check that PyTorch can use the device for voting; None means the best available."""
    import torch

    wanted = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        return Finding(
            "device",
            Severity.PROBLEM,
            f"TERRINE_DEVICE names {wanted}, which cannot be used here ({reason}).",
            "unset TERRINE_DEVICE",
        )
    return Finding("device", Severity.OK, f"Teachers vote on {wanted}.")


def directory(path: Path) -> Finding:
    """Check that the data directory exists, readable by this account and no other."""
    if not path.is_dir():
        found = f"There is no data directory {path.absolute()}."
        return Finding("data directory", Severity.PROBLEM, found, "terrine init")
    if (path / RESTORING).exists():
        found = f"A restore into {path} was interrupted, so nothing is served."
        fix = "terrine restore DIR, with the same backup"
        return Finding("data directory", Severity.PROBLEM, found, fix)
    if not os.access(path, os.R_OK | os.X_OK):
        found = f"This account may not read {path}."
        return Finding("data directory", Severity.PROBLEM, found, f"chown -R \"$(id -u)\" '{path}'")
    if path.stat().st_mode & stat.S_IRWXO:
        found = f"Every account on this machine may enter {path}, which holds private teachers."
        return Finding("data directory", Severity.PROBLEM, found, f"chmod 700 '{path}'")
    return Finding("data directory", Severity.OK, f"{path.absolute()} is closed to other accounts.")


def secret_key(path: Path) -> Finding:
    """Check that the secret key exists, is long enough, and is closed to other accounts."""
    try:
        load_secret_key(path)
    except SecretKeyError as error:
        fix = f"openssl rand -hex 32 > '{path}'" if path.exists() else "terrine init"
        return Finding("secret key", Severity.PROBLEM, str(error), fix)
    return private("secret key", path)


def private(check: str, path: Path) -> Finding:
    """Check that a secret file is closed to other accounts."""
    mode = path.stat().st_mode
    if path.resolve().is_relative_to("/run/secrets"):
        # Container engines mount secrets here, and the container has no other accounts.
        return Finding(check, Severity.OK, f"{path} is a container secret.")
    if mode & stat.S_IRWXO:
        found = f"Every account on this machine may use {path} (mode {stat.S_IMODE(mode):o})."
        return Finding(check, Severity.PROBLEM, found, f"chmod 600 '{path}'")
    if mode & stat.S_IRWXG:
        found = f"The group of {path} may use it (mode {stat.S_IMODE(mode):o})."
        return Finding(check, Severity.WARNING, found, f"chmod 600 '{path}'")
    return Finding(check, Severity.OK, f"{path} is closed to other accounts.")


def disk(path: Path, free: int) -> Finding:
    """Check that `free` bytes are enough for the ledger in `path` to grow."""
    found = f"{free / 2**30:.1f} GiB are free on the disk of {path}."
    if free >= LOW_DISK:
        return Finding("disk", Severity.OK, found)
    state = Severity.WARNING if free >= FULL_DISK else Severity.PROBLEM
    return Finding(
        "disk", state, found, "Free some space: when the ledger cannot grow, answers stop"
    )


def close(path: Path) -> bool:
    """Take all rights on a file or directory from other accounts; return whether any had some."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if path.resolve().is_relative_to("/run/secrets") or not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return False
    path.chmod(mode & stat.S_IRWXU)
    return True

"""`terrine demo`: a complete run on this machine, with the real components."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from terrine_server.cli.console import fail

DEFAULT_OUT = Path("terrine-demo")
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"


def demo(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory with MNIST's four IDX files, plain or .gz."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Small digits; takes under a minute."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Output directory; must be new or empty. Default: terrine-demo, or "
            "terrine-demo-2, … if it exists.",
        ),
    ] = None,
) -> None:
    """Run all of Terrine once: let records vote, serve, teach a student, verify the ledger.

    Uses MNIST from --data, from your cache or downloaded (TERRINE_MNIST_URL names another mirror);
    otherwise scikit-learn's digits.

    [bold]Examples[/bold]

      terrine demo --quick

      terrine demo --data mnist/ --out my-demo
    """
    directory = _fresh(out)

    from terrine_addons.demo.material import choose
    from terrine_addons.demo.story import Demo

    material = choose(data, quick, os.environ.get("TERRINE_MNIST_URL", MIRROR))
    directory.mkdir(parents=True, exist_ok=True)
    Demo(material, directory).run()


def _fresh(out: Path | None) -> Path:
    """Choose a new or empty directory, so that files of an earlier run stay as they are."""
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            fail(f"{out} exists and is not empty. Remove it, or choose another --out.")
        return out
    number, found = 1, DEFAULT_OUT
    while os.path.lexists(found):
        number += 1
        found = DEFAULT_OUT.with_name(f"{DEFAULT_OUT.name}-{number}")
    return found

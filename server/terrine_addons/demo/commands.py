"""`terrine demo`: a complete run on this machine, with the real components."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from terrine_server.cli.console import console, errors, fail

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
    """Run all of Terrine once: let records vote, serve, teach students, verify the ledger.

    Uses MNIST from --data, from your cache or downloaded (TERRINE_MNIST_URL names another mirror);
    otherwise scikit-learn's digits.

    [bold]Examples[/bold]

      terrine demo --quick

      terrine demo --data mnist/ --out my-demo
    """
    directory = _fresh(out)

    from terrine_addons.demo.material import choose
    from terrine_addons.demo.story import Demo, ServerError

    material = choose(data, quick, os.environ.get("TERRINE_MNIST_URL", MIRROR), console)
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("SIGTERM", "SIGHUP"):  # the server must not outlive us
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
    try:
        Demo(material, directory, console).run()
    except ServerError as error:
        fail(str(error))
    except KeyboardInterrupt:
        errors.print(f"Interrupted. The server is stopped; the files so far are in {directory}.")
        raise typer.Exit(130) from None


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

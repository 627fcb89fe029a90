"""The folder: a page, the same as PDF and JSON, registry entries, and evidence; signed."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from terrine_addons.dossier.assessment import list_unchecked
from terrine_addons.dossier.facts import Facts
from terrine_addons.dossier.signing import FORMAT, sign
from terrine_addons.dossier.words import DossierError
from terrine_protocol.transparency import SignerKey

PAGE, PRINTED, DATA = "dossier.html", "dossier.pdf", "dossier.json"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge")
PRINTING_SECONDS = 120


def collect_for_template(facts: Facts) -> dict[str, Any]:
    """Return what the template of the sections needs."""
    from terrine_addons.dossier import assessment, words
    from terrine_addons.dossier import facts as registry

    return {
        "facts": facts,
        "unchecked": list(list_unchecked(facts)),
        "told": facts.told,
        "words": words,
        "assessed": assessment.assess(facts),
        "entries": [(each, registry.flat(registry.entry(facts, each))) for each in facts.projects],
        "unit_details": registry.unit_details,
        "what_leaves": registry.what_leaves,
    }


def as_json(facts: Facts) -> bytes:
    """Return the facts and what was judged by them."""
    from pydantic_core import to_json

    from terrine_addons.dossier import assessment

    written: dict[str, Any] = {"format": FORMAT, "unchecked": list(list_unchecked(facts))}
    written |= {name: value for name, value in vars(facts).items() if name not in written}
    written["told"] = facts.told.answers
    written["audit"] = facts.audit and facts.audit.to_json()
    written["assessment"] = [asdict(each) for each in assessment.assess(facts)]
    return to_json(written, indent=2)


def write(facts: Facts, out: Path, key: SignerKey, *, audit: bytes | None = None) -> str | None:
    """Write the folder, which must be new or empty, and sign it; all of it, or nothing.

    `audit`: the report that the facts were read from, to go with them. Returns why there is no PDF;
    None if there is one. Raises DossierError, or OSError.
    """
    from pydantic_core import to_json

    from terrine_addons.dossier import facts as registry

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DossierError(f"{out} is not empty. Name a new directory with --out.")
    parent = out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=parent, prefix=f".{out.name}.") as made:
        folder = Path(made, "dossier")
        folder.mkdir()
        (folder / PAGE).write_text(_page(facts), "utf-8")
        (folder / DATA).write_bytes(as_json(facts))
        for project in facts.projects:
            name = f"registry-{project.info.name}.json"
            (folder / name).write_bytes(to_json(registry.entry(facts, project), indent=2))
        if facts.checkpoint is not None:
            (folder / "checkpoint").write_text(facts.checkpoint.note, "utf-8")
        if audit is not None:
            (folder / "audit.json").write_bytes(audit)
        missing = _print(folder / PAGE, folder / PRINTED)
        sign(folder, key, facts.made_at)
        if out.exists():
            out.rmdir()
        os.rename(folder, out)
    return missing


def _page(facts: Facts) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    from terrine_server.formats import FILTERS, format_share, show_value

    templates = Environment(
        loader=PackageLoader("terrine_addons.dossier"),
        autoescape=True,
        finalize=show_value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= FILTERS
    templates.globals |= {"share": format_share}
    style = (files("terrine_addons.dossier") / "templates" / "document.css").read_text("utf-8")
    return templates.get_template("document.html").render(
        **collect_for_template(facts), style=style
    )


def _print(page: Path, pdf: Path) -> str | None:
    """Print a page with a browser of this machine; return why it could not be done."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return f"no browser on PATH ({', '.join(BROWSERS)})"
    with TemporaryDirectory(prefix="terrine-print-") as profile:
        options = [
            "--headless",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-pdf-header-footer",
            f"--user-data-dir={profile}",
            f"--print-to-pdf={pdf}",
        ]
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # as root there is none; the page is ours, and no script
        try:
            done = subprocess.run(  # noqa: S603 - a browser on PATH, on a page of ours
                [browser, *options, page.as_uri()],
                capture_output=True,
                timeout=PRINTING_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{browser} did not print within {PRINTING_SECONDS} seconds"
        except OSError as error:
            return f"{browser}: {error.strerror}"
    if done.returncode != 0 or not pdf.is_file():
        pdf.unlink(missing_ok=True)
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"{browser} failed: {said[-1] if said else f'exit code {done.returncode}'}"
    return None

"""Draw the pictures of docs/admin.md: python tests/admin/screenshots.py docs

The ledger is a real one, on real teachers of digits; who asked, what was answered and when is made
up: a server is told the time, and outcomes come from a seed.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "tests")]

from support.browser import browser, chromium, no_browser  # noqa: E402
from support.data import train_digits  # noqa: E402
from support.ledgers import abstained, answered, charge_one  # noqa: E402
from support.servers import RunningServer, running_server  # noqa: E402
from terrine_protocol import ProjectStatus, Role, TokenCreate  # noqa: E402
from terrine_server.owner.sign_in import Tokens, load_secret_key  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Page

START = datetime(2026, 9, 14, 8, tzinfo=UTC)
STUDIES = {
    "diabetes-screening": (
        {"name": "confident_gnmax", "threshold": 20, "sigma1": 180.0, "sigma2": 60.0},
        6.0,
        34,
        46,
    ),
    "icu-readmission": ({"name": "gnmax", "sigma": 120.0}, 4.0, 18, 25),
    "radiology-pilot": ({"name": "gnmax", "sigma": 60.0}, 2.0, 12, 60),
    "sepsis-alerts": ({"name": "lnmax", "gamma": 0.004}, 3.0, 25, 9),
}
"""By name: mechanism, ε, days of asking, queries on a day."""
WEEKEND = 5
WEBP_QUALITY = 70


@contextmanager
def told(clock: list[datetime]) -> Iterator[None]:
    with patch("terrine_server.ledger.database.now", lambda: clock[0]):
        yield


def fill(server: RunningServer) -> None:
    """Open the studies, and let them be asked for weeks."""
    chance, queries, clock = random.Random(1), count(), [START]
    tokens = Tokens(server.ledger, load_secret_key(server.settings.secret_key_path))
    with told(clock):
        for name, (mechanism, epsilon, days, daily) in STUDIES.items():
            clock[0] = START + timedelta(days=chance.randrange(12))
            record = server.open_project(name, mechanism, epsilon=epsilon)
            wanted = {
                "role": Role.STUDENT,
                "project": name,
                "label": f"{name.partition('-')[0]} team",
            }
            tokens.create(TokenCreate.model_validate(wanted))
            rate = 0.8 if "confident" in str(mechanism) else 1.0
            for _ in range(days):
                clock[0] += timedelta(days=1)
                asked = (
                    0 if clock[0].weekday() >= WEEKEND else int(daily * chance.uniform(0.3, 1.6))
                )
                for _ in range(asked):
                    clock[0] += timedelta(seconds=chance.randrange(20, 300))
                    query = next(queries)
                    right = chance.random() < rate
                    made = answered(query, chance.randrange(10)) if right else abstained(query)
                    if server.ledger.projects.get(name).affordable:
                        charge_one(server.ledger, record.id, [made])
        server.ledger.projects.set_status("sepsis-alerts", ProjectStatus.PAUSED)
        server.ledger.projects.set_status("radiology-pilot", ProjectStatus.CLOSED)


def take(page: Page, path: Path) -> None:
    """Write what the page shows as WebP."""
    from PIL import Image

    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").save(path, quality=WEBP_QUALITY, method=6)
    print(f"{path}: {path.stat().st_size:,} bytes")  # noqa: T201


def draw(server: RunningServer, directory: Path, everything: bool) -> None:
    token = server.token("admin")
    looks: dict[str, dict[str, Any]] = {
        "light": {"viewport": {"width": 1120, "height": 860}, "color_scheme": "light"},
        "dark": {"viewport": {"width": 1120, "height": 860}, "color_scheme": "dark"},
        "phone": {"viewport": {"width": 390, "height": 860}, "color_scheme": "light"},
    }
    paths = {"overview": "", "project": "/projects/diabetes-screening", "open": "/open"}
    chosen = [("overview", "light"), ("project", "dark"), ("open", "phone")]
    if everything:
        paths |= {
            "close": "/projects/icu-readmission/close",
            "tokens": "/tokens",
            "ensembles": "/ensembles",
            "log": "/log",
            "audit": "/audit",
            "missing": "/projects/none",
            "terms": "/open?ensemble=digits&mechanism=confident_gnmax",
        }
        chosen = [(screen, look) for screen in paths for look in looks]
    path = chromium()
    assert path is not None
    with browser(path) as started:
        for look, options in looks.items():
            context = started.new_context(java_script_enabled=False, **options)
            page = context.new_page()
            page.goto(f"{server.url}/admin/sign-in")
            if everything:
                take(page, directory / f"admin-sign-in-{look}.webp")
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Sign in").click()
            for screen in (s for s, chosen_look in chosen if chosen_look == look):
                page.goto(f"{server.url}/admin{paths[screen]}")
                if screen == "open":
                    page.get_by_label("Public rows").fill("1500")
                    page.get_by_label("ε", exact=True).fill("6")
                    page.get_by_role("button", name="Propose a project").click()
                    if look == "phone":
                        page.get_by_text("Protected", exact=True).scroll_into_view_if_needed()
                if everything:
                    page.set_viewport_size(
                        {
                            "width": options["viewport"]["width"],
                            "height": min(4000, page.evaluate("document.body.scrollHeight")),
                        }
                    )
                take(page, directory / f"admin-{screen}-{look}.webp")
            context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--all", action="store_true", help="Every screen in every look, whole.")
    given = parser.parse_args()
    missing = no_browser()
    if missing is not None:
        sys.exit(missing)
    with TemporaryDirectory() as made:
        ensemble = train_digits(Path(made) / "digits")
        url = f"sqlite:///{Path(made) / 'terrine.sqlite'}"
        with running_server(Path(made) / "data", url, ensemble) as server:
            fill(server)
            draw(server, given.directory, given.all)


if __name__ == "__main__":
    main()

"""The pages in a real browser: without scripts, by keyboard and label, in both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from support.browser import CLIENT, SCREENS, SECRET, browser, chromium, local_issuer, no_browser
from support.data import DigitsEnsemble
from support.processes import PATIENCE_SECONDS
from support.servers import RunningServer, running_server
from terrine_client import Client
from terrine_protocol import Outcome
from terrine_server.admin import charts
from terrine_server.ledger import ProjectPosition

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MISSING = no_browser()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(MISSING is not None, reason=str(MISSING))]
IN_THE_DARK = (
    "",
    "/open?ensemble=digits&mechanism=immutable",
    "/projects/study",
)
"""Screens that have all colours between them."""


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    path = chromium()
    assert path is not None
    with browser(path) as started:
        yield started


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, digits_ensemble: DigitsEnsemble
) -> Iterator[RunningServer]:
    directory: Path = tmp_path_factory.mktemp("browsed")
    url = f"sqlite:///{directory / 'terrine.sqlite'}"
    with running_server(directory / "data", url, digits_ensemble) as made:
        yield made


def expect(what: Any) -> Any:
    """Wait for it: a page that a click leads to has only begun when the click returns."""
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE_SECONDS * 1000)
    return expect(what)


def open_page(chrome: Browser, server: RunningServer, **options: Any) -> tuple[Page, list[str]]:
    """Return a page that is signed in as an admin, and what the browser complains about."""
    page, said = chrome.new_context(**options).new_page(), list[str]()
    page.set_default_timeout(PATIENCE_SECONDS * 1000)
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("response", lambda r: said.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    page.goto(f"{server.url}/admin")
    page.wait_for_url("**/admin/sign-in")
    page.get_by_label("Token").fill(server.token("admin"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/admin")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    return page, said


def test_a_study_from_opening_to_closing_without_any_script(
    chrome: Browser, server: RunningServer
) -> None:
    page, said = open_page(chrome, server, java_script_enabled=False)
    page.get_by_role("navigation").get_by_role("link", name="Open a project").click()
    page.get_by_label("Mechanism").select_option("gnmax")
    page.get_by_role("button", name="Go on").click()
    for label, value in (("Name", "study"), ("ε", "30"), ("δ", "1e-5"), ("sigma", "4")):
        page.get_by_label(label, exact=True).fill(value)
    page.get_by_role("button", name="Show the price").click()
    expect(page.get_by_text("What it would be")).to_be_visible()
    page.get_by_role("button", name="Open study").click()
    page.wait_for_url("**/admin/projects/study")

    page.get_by_role("link", name="Create a token").click()
    expect(page.get_by_label("Project")).to_have_value("study")
    page.get_by_label("Label").fill("Ada")
    page.get_by_role("button", name="Create").click()
    token = page.get_by_role("region", name="Token").inner_text().strip()
    with Client(server.url, token) as client:
        labels = client.label(server.ensemble.public[:20])
    assert len(labels) == 20

    page.goto(f"{server.url}/admin/projects/study")
    expect(page.get_by_role("img", name="Budget left, over time")).to_be_visible()
    expect(page.get_by_role("region", name="Charges").get_by_role("row")).to_have_count(21)
    page.get_by_text("The same as tables").click()
    expect(page.get_by_role("table", name="Charges by day")).to_be_visible()
    page.get_by_role("button", name="Verify now").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("study: intact")
    page.goto(f"{server.url}/admin/projects/study")
    page.get_by_role("button", name="Dossier").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dossier of study")
    expect(page.get_by_text("intact", exact=True)).to_have_count(2)
    with page.expect_download() as download:
        page.goto(f"{server.url}/admin/projects/study")
        page.get_by_role("link", name="CSV").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == 21

    page.get_by_role("link", name="Close…").click()
    page.get_by_role("button", name="Close study for good").click()
    expect(page.get_by_text("closed", exact=True)).to_be_visible()
    assert server.ledger.projects.get("study").status == "closed"
    page.get_by_role("link", name="Log", exact=True).click()
    expect(page.get_by_role("row").nth(1).get_by_text("project-closed")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/admin/sign-in")
    page.goto(f"{server.url}/admin/projects/study")
    page.wait_for_url("**/admin/sign-in")
    assert said == [], "\n".join(said)


@pytest.fixture
def some(server: RunningServer) -> None:
    """A study with charges, whichever test runs first."""
    if "study" not in server.ledger.projects.list_names():
        server.open_project("study", epsilon=30.0)
        with Client(server.url, server.token()) as client:
            client.label(server.ensemble.public[:20])


def test_every_screen_is_readable_on_a_phone_and_on_a_desk(
    chrome: Browser, server: RunningServer, some: None
) -> None:
    page, said = open_page(chrome, server, java_script_enabled=False)
    for path in SCREENS:
        reply = page.goto(f"{server.url}/admin{path}")
        assert reply is not None
        assert reply.ok, path
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 844})
            readable(page, width)
            if width == WIDTHS[0] and path in ("/log", "/tokens", "/audit"):
                assert cut_off(page) == [], path
    assert said == [], "\n".join(said)


@pytest.mark.usefixtures("some")
def test_the_file_of_a_dossier_is_readable_on_a_phone_and_on_a_desk(
    chrome: Browser, server: RunningServer, tmp_path: Path
) -> None:
    file = tmp_path / "dossier.html"
    facts = pytest.importorskip("terrine_addons.dossier.facts")
    file.write_text(facts.render(facts.gather(server.ledger, server.settings, "study")))
    page = chrome.new_context().new_page()
    page.goto(file.as_uri())
    heights = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 844})
        heights.append(readable(page, width))
        assert cut_off(page) == [], width
    *phones, desk = heights
    assert max(phones) < MOST_TIMES_HIGHER * desk


WIDTHS = (360, 390, 1280)
MOST_TIMES_HIGHER = 3
"""A text is about three times as high on a phone as on a desk, where it is three times as wide."""
NARROW = """[...document.querySelectorAll('th, td, dd, li, p, pre')]
    .filter(e => e.offsetParent && !e.closest('.away') && e.closest('thead')?.clientWidth !== 1)
    .filter(e => e.innerText.trim().length > 12)
    .filter(e => e.clientWidth < 6 * parseFloat(getComputedStyle(e).fontSize) / 2)
    .map(e => e.innerText)"""
"""Texts of more than a few characters, to be seen, in less room than six of them need."""
CUT_OFF = """[...document.querySelectorAll('.scroll, pre')]
    .filter(e => e.offsetParent && e.scrollWidth > e.clientWidth)
    .map(e => e.ariaLabel || e.innerText)"""
"""What is wider than its place, and has to be scrolled there."""


def readable(page: Page, width: int) -> int:
    """Check that nothing is wider than the screen or squeezed, and return how high the page is."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    assert page.evaluate(NARROW) == [], page.url
    return int(page.evaluate("document.body.scrollHeight"))


def cut_off(page: Page) -> list[str]:
    return list(page.evaluate(CUT_OFF))


@pytest.mark.parametrize("most", [1, 7, 999, 40_000, 250_000, 12_345_678, 10**10])
def test_no_label_of_a_chart_is_cut_off(chrome: Browser, most: int) -> None:
    opened = datetime(2026, 1, 1, tzinfo=UTC)
    spent = [ProjectPosition(seq, opened, 1) for seq in {most, max(most // 2, 1)}]
    reached = sorted(spent, key=lambda each: each.seq)
    days = [opened.date() + timedelta(days=day) for day in (0, 1, 59)]
    drawn = (
        charts.draw_by_query(reached, 2),
        charts.draw_by_time(reached, 2, opened),
        *(charts.draw_by_day({d: {Outcome.ANSWERED: most} for d in days[:n]}) for n in (1, 2, 3)),
    )
    page = chrome.new_context().new_page()
    page.set_content(f"<style>{style()}</style>{''.join(drawn)}")
    assert page.locator("svg.chart").count() == len(drawn)
    assert page.evaluate(OUTSIDE) == []


def style() -> str:
    return (files("terrine_server.admin") / "static" / "style.css").read_text()


OUTSIDE = """[...document.querySelectorAll('svg.chart')].flatMap(chart => {
    const all = chart.viewBox.baseVal;
    return [...chart.querySelectorAll('text')].filter(label => {
        const box = label.getBBox();
        return box.x < 0 || box.y < 0 || box.x + box.width > all.width
            || box.y + box.height > all.height + 2;
    }).map(label => label.textContent);
})"""
"""Labels of charts that reach out of their picture."""


@pytest.mark.nightly
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_nothing(
    chrome: Browser, server: RunningServer, some: None, colours: Literal["light", "dark"]
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="NO AXE: accessibility is not checked. pip install axe-playwright-python",
    ).Axe()
    page, _ = open_page(chrome, server, color_scheme=colours)
    options, paths = {
        "light": ({"resultTypes": ["violations"]}, (*SCREENS, "/projects/none")),
        "dark": ({"runOnly": ["color-contrast"]}, IN_THE_DARK),
    }[colours]
    found = []
    for path in paths:
        page.goto(f"{server.url}/admin{path}")
        for violation in axe.run(page, options=options).response["violations"]:
            nodes = [node["html"][:200] for node in violation["nodes"]]
            found.append((path, violation["id"], nodes))
    assert found == []


def test_signing_in_through_an_issuer_without_any_script(
    chrome: Browser, tmp_path: Path, digits_ensemble: DigitsEnsemble
) -> None:
    url, secret = f"sqlite:///{tmp_path / 'terrine.sqlite'}", tmp_path / "secret"
    secret.write_text(SECRET)
    kind = pytest.importorskip("terrine_addons.oidc.settings").OidcSettings
    # To a browser, localhost is another site than 127.0.0.1, as an issuer's is.
    with local_issuer("localhost") as issuer:
        chosen = {
            "oidc_issuer": issuer.url,
            "oidc_client_id": CLIENT,
            "oidc_client_secret_file": secret,
            "public_url": "https://terrine.example",
            "oidc_admins": "privacy-admins",
            "oidc_plain_http": True,
        }
        with running_server(tmp_path / "data", url, digits_ensemble, kind, **chosen) as server:
            issuer.way_back = f"{server.url}/admin/oidc/callback"
            page, said = chrome.new_context(java_script_enabled=False).new_page(), list[str]()
            page.set_default_timeout(PATIENCE_SECONDS * 1000)
            page.on("console", lambda message: said.append(message.text))
            page.goto(f"{server.url}/admin")
            page.get_by_role("link", name="Sign in through").click()
            page.wait_for_url("**/admin")
            expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
            expect(page.get_by_text("admin Ada L.")).to_be_visible()
            page.get_by_role("button", name="Sign out").click()
            page.wait_for_url("**/admin/sign-in")
            assert said == []

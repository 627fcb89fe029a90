"""A version is tagged, named and described once, and everything says the same one."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.documents import REPOSITORY, ReleaseError, check_changelog, declared_version
from support.processes import run_program
from support.wording import refuses

VERSION = declared_version()
CHANGELOG = (REPOSITORY / "CHANGELOG.md").read_text()


def test_the_version_that_is_built_is_in_the_changelog() -> None:
    check_changelog(CHANGELOG, VERSION, None)


def test_a_tagged_commit_has_the_version_of_its_tag() -> None:
    listed = run_program("git", "tag", "--points-at", "HEAD", "--list", "v*", cwd=REPOSITORY)
    if listed.returncode != 0:
        pytest.skip(f"NOT A GIT CHECKOUT, so it has no tags: {listed.stderr.strip()}")
    for tag in listed.stdout.split():
        check_changelog(CHANGELOG, VERSION, tag)


def test_images_carry_the_version() -> None:
    compose = (REPOSITORY / "docker-compose.yml").read_text()
    assert set(re.findall(r"image: terrine[\w-]*:(\S+)", compose)) == {VERSION}


def test_the_build_backend_is_the_one_that_tests_build_with() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    assert re.findall(r'"hatchling(==\S+)"', project) == [f"=={version('hatchling')}"] * 2


@pytest.mark.parametrize(
    ("text", "tag", "why"),
    [
        ("## 1.1.0 - 2027-01-01\n", None, "'Unreleased' 1.2.0"),
        ("## Unreleased\n- new\n", "v1.2.0", "section 1.2.0"),
        ("## 1.2.0 - 2027-01-01\n", "v1.3.0", "tag v1.2.0"),
        ("## 1.2.0 - 2027-01-01\n", "1.2.0", "tag v1.2.0"),
        ("## Unreleased\n- new\n## 1.2.0 - 2027-01-01\n", "v1.2.0", "lines"),
        ("## 1.2\n", None, "heading"),
        ("## 1.1.0 - 2027-01-01\n## 1.2.0 - 2027-02-01\n", None, "newest"),
    ],
)
def test_a_changelog_that_does_not_fit_is_refused(text: str, tag: str | None, why: str) -> None:
    with refuses(ReleaseError, *why.split()):
        check_changelog(text, "1.2.0", tag)


@pytest.mark.parametrize("unreleased", ["", "## Unreleased\n\n"])
def test_a_changelog_that_fits_is_accepted(unreleased: str) -> None:
    check_changelog(f"# Changelog\n{unreleased}## 1.2.0 - 2027-01-01\n- new\n", "1.2.0", "v1.2.0")


LOCK = (REPOSITORY / "docker" / "requirements.lock").read_text()
LOCK_RAY = (REPOSITORY / "docker" / "requirements-ray.lock").read_text()
EXTRAS = {LOCK: ("server", "onnx", "oidc"), LOCK_RAY: ("ray",)}


def pinned(lock: str) -> dict[str, str]:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+) \\\n(?=    --hash=sha256:)", lock, re.MULTILINE))
    assert len(pins) == lock.count("==")
    return pins


def test_the_image_with_ray_adds_to_the_other_and_changes_nothing() -> None:
    ours, rays = pinned(LOCK), pinned(LOCK_RAY)
    assert {name: rays[name] for name in ours.keys() & rays} == {
        name: ours[name] for name in ours.keys() & rays
    }


@pytest.mark.parametrize("lock", EXTRAS, ids=("server", "ray"))
def test_the_image_has_a_pin_with_hashes_for_everything_that_it_imports(lock: str) -> None:
    pins = pinned(lock)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = [text for extra in EXTRAS[lock] for text in project["optional-dependencies"][extra]]
    for text in project["dependencies"] + extras:
        needed = Requirement(text)
        if needed.name != "torch":  # the image gets it from an index of its own
            pin = pins.get(canonicalize_name(needed.name), "0")
            assert needed.specifier.contains(pin), f"{text} is locked at {pin}: `make lock`"


def test_the_lock_brings_no_cuda() -> None:
    assert re.findall(r"^(?:nvidia|cuda|triton)\S*==", LOCK + LOCK_RAY, re.MULTILINE) == []

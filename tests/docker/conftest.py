"""A Docker engine, or none."""

from __future__ import annotations

import shutil

import pytest

from support.processes import run_program


@pytest.fixture(scope="session")
def engine() -> None:
    if shutil.which("docker") is None:
        pytest.skip("NO DOCKER ENGINE: docker is not installed. The images are not tested here.")
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        asked = run_program(*command)
        if asked.returncode != 0:
            pytest.skip(f"NO DOCKER ENGINE: {' '.join(command)}: {asked.stderr.strip()}")

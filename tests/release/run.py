"""`make release-check`: is this commit fit for release, and does it make the files released?

    python tests/release/run.py [--tag v1.2.3] [--out dist] [--against DIR] [--torch "torch==..."]

Builds sdist and wheel from the commit alone and again from the unpacked sdist, and compares the
bytes; installs the wheel into new environments far from the checkout, and runs client, commands,
server and quick demo there. The files stay in `--out`, with their SHA-256. `--against` holds them
against files from elsewhere. Bytes also depend on zlib: use the Python that the release used.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.documents import (
    REPOSITORY,
    ReleaseError,
    build,
    check_changelog,
    declared_version,
    unpack_elsewhere,
)


def bare() -> dict[str, str]:
    """The environment, without settings of Terrine or Python that lead back to the checkout."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("TERRINE_", "PYTHON"))}


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=bare(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ReleaseError(f"{shlex.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def committed_tree(directory: Path) -> Path:
    """What the commit holds, and nothing that only lies in the checkout."""
    changed = run("git", "status", "--porcelain", "--untracked-files=no", cwd=REPOSITORY)
    if changed:
        raise ReleaseError(
            f"these files differ from the commit; commit or restore them:\n{changed}"
        )
    directory.mkdir()
    archive = directory.with_suffix(".tar")
    run("git", "archive", "--output", archive, "HEAD", cwd=REPOSITORY)
    run("tar", "--extract", "--file", archive, cwd=directory)
    return directory


def built_twice(work: Path, out: Path) -> dict[str, bytes]:
    first = build(committed_tree(work / "tree"), out)
    (sdist,) = out.glob("terrine-*.tar.gz")
    again = build(
        unpack_elsewhere(sdist, work / "elsewhere"), work / "again", TZ="Pacific/Auckland"
    )
    if first != again:
        raise ReleaseError(f"two builds differ: compare {out} with a build of the unpacked sdist")
    return first


def compare(built: dict[str, bytes], directory: Path) -> None:
    for name, data in built.items():
        if not (directory / name).is_file():
            raise ReleaseError(f"{directory} has no {name}: download it there")
        if (directory / name).read_bytes() != data:
            raise ReleaseError(f"{directory / name} is not what this commit makes with this Python")


def expect(said: str, words: str) -> None:
    if words not in said:
        raise ReleaseError(f"expected {words!r} in what was printed:\n{said}")


def environment(directory: Path, *requirements: list[str]) -> Path:
    """Make a virtual environment, ask pip for each of `requirements`; return its programs."""
    venv.create(directory, with_pip=True)
    for asked in requirements:
        run(directory / "bin" / "pip", "install", "--quiet", *asked, cwd=directory)
    return directory / "bin"


def check_student(work: Path, wheel: Path) -> None:
    programs = environment(work / "student", [str(wheel)])
    code = "import terrine_client as t; print(t.Client, t.AsyncClient, t.__file__)"
    expect(run(programs / "python", "-c", code, cwd=work), str(work))
    expect(run(programs / "terrine", "--help", cwd=work), "student")
    expect(run(programs / "terrine", "--version", cwd=work), declared_version())


def check_owner(work: Path, wheel: Path, torch: list[str]) -> None:
    programs = environment(work / "owner", *([torch] if torch else []), [f"{wheel}[server]"])
    run(programs / "terrine", "init", cwd=work)
    check_serving(programs / "terrine", work)
    expect(run(programs / "terrine", "demo", "--quick", cwd=work), "ledger")


def check_serving(terrine: Path, work: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = work / "serve.log"
    with log.open("w") as said:
        command = [str(terrine), "serve", "--port", str(port)]
        server = subprocess.Popen(command, cwd=work, env=bare(), stdout=said, stderr=said)
    try:
        deadline = time.monotonic() + 120
        while server.poll() is None and time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
                return
            except OSError:
                time.sleep(0.2)
        raise ReleaseError(f"`terrine serve` of the wheel is not ready:\n{log.read_text()}")
    finally:
        server.terminate()
        server.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tag", help="the tag to be released; without, the changelog may be open")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "dist", help="default: dist")
    parser.add_argument("--against", type=Path, help="a directory with the released files")
    parser.add_argument("--torch", default="", help="what pip is asked for as PyTorch, first")
    given = parser.parse_args()
    if given.out.is_dir() and any(given.out.iterdir()):
        sys.exit(f"{given.out} is not empty: remove what is in it, or name another with --out")
    try:
        check_changelog((REPOSITORY / "CHANGELOG.md").read_text(), declared_version(), given.tag)
        with tempfile.TemporaryDirectory(prefix="terrine-release-") as directory:
            work = Path(directory)
            built = built_twice(work, given.out)
            print("Two builds of this commit are the same, byte for byte:")
            for name, data in sorted(built.items()):
                print(f"  {hashlib.sha256(data).hexdigest()}  {name}", flush=True)
            if given.against:
                compare(built, given.against)
                print(f"The files in {given.against} are these.", flush=True)
            (wheel,) = given.out.resolve().glob("*.whl")
            check_student(work, wheel)
            print("The wheel alone: client, --help, --version.", flush=True)
            check_owner(work, wheel, shlex.split(given.torch))
            print("The wheel with [server]: init, serve, demo --quick.")
    except ReleaseError as wrong:
        sys.exit(f"NOT RELEASABLE: {wrong}")


if __name__ == "__main__":
    main()

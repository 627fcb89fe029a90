"""MNIST comes whole and right from a mirror, or not at all."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from support.wording import refuses
from terrine_addons.demo import material
from terrine_addons.demo.material import FetchError, cache_directory, is_mnist_cached


@dataclass
class Mirror:
    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    stalled: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    encoding: str = ""
    served: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """A local mirror of four small files, whose digests stand in for MNIST's."""
    contents = {name: (name * 1000).encode() for name in material.FILES}
    digests = {n: (len(b), hashlib.sha256(b).hexdigest()) for n, b in contents.items()}
    monkeypatch.setattr(material, "FILES", digests)
    site = Mirror(files={f"/{name}.gz": gzip.compress(body) for name, body in contents.items()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.served.append(self.path)
            body = site.files.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            if site.encoding:
                self.send_header("Content-Encoding", site.encoding)
            self.end_headers()
            if self.path in site.stalled:
                self.wfile.write((body or b"")[:10])
                self.wfile.flush()
                site.over.wait(60)  # longer than any client does
            elif self.path in site.cut:
                self.wfile.write((body or b"")[:10])
            else:
                self.wfile.write(body or b"")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield site
    site.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


def fetch_mnist(url: str, directory: Path) -> Progress:
    bar = Progress(console=Console(quiet=True))
    material.fetch_mnist(url, directory, bar)
    return bar


def leftovers(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_all_four_files_arrive_unpacked_and_are_not_fetched_again(
    mirror: Mirror, tmp_path: Path
) -> None:
    bar = fetch_mnist(mirror.url, tmp_path / "mnist")
    assert is_mnist_cached(tmp_path / "mnist")
    assert leftovers(tmp_path / "mnist") == sorted(material.FILES)
    assert {task.description: (task.completed, task.total) for task in bar.tasks} == {
        name: (len(mirror.files[f"/{name}.gz"]),) * 2 for name in material.FILES
    }
    served = len(mirror.served)
    fetch_mnist(mirror.url, tmp_path / "mnist")
    assert len(mirror.served) == served


FIRST, LABELS = "/train-images-idx3-ubyte.gz", "/train-labels-idx1-ubyte.gz"
BAD: dict[str, tuple[str, bytes | None, tuple[object, ...]]] = {
    "another file": (LABELS, gzip.compress(b"something else"), ("MNIST",)),
    "a decompression bomb": (FIRST, gzip.compress(bytes(50_000_000)), ("bytes",)),
    "a page of the Web": (FIRST, b"<html>not gzip</html>", (FIRST[1:],)),
    "nothing": (FIRST, b"", (FIRST[1:],)),
    "a file that is not there": (FIRST, None, (FIRST[1:], 404)),
}
"""What is served in place of a file, and what is said of it."""


@pytest.mark.parametrize("what", BAD)
def test_what_is_not_a_file_of_mnist_is_refused_and_not_kept(
    mirror: Mirror, tmp_path: Path, what: str
) -> None:
    name, body, words = BAD[what]
    del mirror.files[name]
    if body is not None:
        mirror.files[name] = body
    with refuses(FetchError, *words):
        fetch_mnist(mirror.url, tmp_path)
    assert leftovers(tmp_path) == ([] if name == FIRST else ["train-images-idx3-ubyte"])
    assert not is_mnist_cached(tmp_path)


def test_a_mirror_that_hangs_up_half_way_leaves_nothing_half_written(
    mirror: Mirror, tmp_path: Path
) -> None:
    mirror.cut.add(FIRST)
    with refuses(FetchError, 10):
        fetch_mnist(mirror.url, tmp_path)
    assert leftovers(tmp_path) == []


def test_a_mirror_that_stalls_is_given_up(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the first that is asked for: no other has so little time."""
    monkeypatch.setattr(material, "TIMEOUT_SECONDS", (60, 0.3))
    mirror.stalled.add("/train-images-idx3-ubyte.gz")
    with refuses(FetchError, "images-idx3-ubyte.gz", "timed"):
        fetch_mnist(mirror.url, tmp_path)
    assert leftovers(tmp_path) == []


def test_a_mirror_may_declare_the_packing_as_its_own(mirror: Mirror, tmp_path: Path) -> None:
    mirror.encoding = "gzip"
    fetch_mnist(mirror.url, tmp_path)
    assert is_mnist_cached(tmp_path)


def test_an_altered_file_in_the_cache_is_fetched_afresh(mirror: Mirror, tmp_path: Path) -> None:
    fetch_mnist(mirror.url, tmp_path)
    name = "t10k-labels-idx1-ubyte"
    (tmp_path / name).write_bytes(bytes((tmp_path / name).stat().st_size))
    assert not is_mnist_cached(tmp_path)
    fetch_mnist(mirror.url, tmp_path)
    assert is_mnist_cached(tmp_path)


def test_the_cache_is_where_the_user_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "terrine" / "mnist"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "terrine" / "mnist"


def test_the_digests_are_those_of_mnist(shared_data: Path) -> None:
    for name, (size, digest) in material.FILES.items():
        data = gzip.decompress((shared_data / "mnist" / f"{name}.gz").read_bytes())
        assert (len(data), hashlib.sha256(data).hexdigest()) == (size, digest)

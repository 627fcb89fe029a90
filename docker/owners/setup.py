"""`make owners` and `make owners-demo`: what owners need who vote from containers of their own.

Run by the Python of this machine, without Terrine. Nothing that exists is replaced but
owners/compose.yml, the list of services. docs/deploying.md says what each file is for.
"""

from __future__ import annotations

import argparse
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from os.path import relpath
from pathlib import Path

HERE = Path(__file__).resolve().parent
OWNERS = Path("owners")
SERVICE = "for-the-service"
VALID_DAYS = "3650"

COMPOSE = """\
  {name}:
    extends: {{file: {base}, service: owner}}
    volumes: ["{name}:/var/lib/terrine"]
    secrets:
      - {{source: {name}-key, target: key}}
      - {{source: {name}-certificate, target: certificate}}
      - {{source: {name}-token, target: token}}
"""
SECRETS = """\
  {name}-key: {{file: ./{name}/key.pem}}
  {name}-certificate: {{file: ./{name}/certificate.pem}}
  {name}-token: {{file: ./{name}/token}}
"""
FEDERATION = """\
# Who votes, and on what. The first lines suit the teachers of `make owners-demo`, which know images
# of digits. For teachers of your own, describe those: docs/addons/federation.md explains each.
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
units = 1200                            # of all owners together, as they state
disjoint_by = "each owner has other images of the demo"
quorum = {quorum}                              # with fewer answers, nothing is answered or charged

[input]
shape = [8, 8]
dtype = "uint8"
low = 0
high = 16
"""
OWNER = """
[[owner]]
name = "{name}"
url = "https://{name}:8100"
model = "teacher"
certificate = "{name}.pem"
token_file = "{name}.token"
binary = true
"""


def names(given: str) -> list[str]:
    """Return the owners' names: those that are given, or owner-1, owner-2, … if it is a number."""
    found = given.split()
    if len(found) == 1 and found[0].isdecimal():
        found = [f"owner-{number}" for number in range(1, int(found[0]) + 1)]
    for name in found:
        if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) is None or name == SERVICE:
            sys.exit(f"{name!r} is no name of an owner: expected a-z, 0-9 and '-', as in st-mary.")
    if len(set(found)) < max(2, len(found)):
        sys.exit(f'OWNERS="{given}": expected a number, 2 or more, or as many different names.')
    return found


def make(given: str) -> None:
    """Make keys, certificates, tokens, services and the federation's file, where they are
    missing."""
    found = names(given)
    if shutil.which("openssl") is None:
        sys.exit("openssl is not on this machine. Install it: it makes the owners' certificates.")
    OWNERS.mkdir(exist_ok=True)
    OWNERS.chmod(0o700)
    service = OWNERS / SERVICE
    service.mkdir(exist_ok=True)
    service.chmod(0o755)
    for name in found:
        make_owner(OWNERS / name, service)
    services = "".join(
        COMPOSE.format(name=n, base=relpath(HERE / "owner.yml", OWNERS)) for n in found
    )
    (OWNERS / "compose.yml").write_text(
        f"# Written by `make owners`, again at each run.\nservices:\n{services}"
        "volumes:\n"
        + "".join(f"  {name}:\n" for name in found)
        + "secrets:\n"
        + "".join(SECRETS.format(name=name) for name in found)
    )
    write_federation(service / "owners.toml", found)
    remember("OWNERS_FILE=./owners/compose.yml")


def make_owner(directory: Path, service: Path) -> None:
    """Make the key, certificate and token of one owner; give the service what it is to have."""
    directory.mkdir(exist_ok=True)
    key, certificate, token = (directory / n for n in ("key.pem", "certificate.pem", "token"))
    name = directory.name
    if not (key.exists() and certificate.exists()):
        certify(name, key, certificate)
        print(f"made {key} and {certificate}")
    if not token.exists():
        token.write_text(secrets.token_hex(32))
        print(f"made {token}")
    for file, copy in ((certificate, f"{name}.pem"), (token, f"{name}.token")):
        (service / copy).unlink(missing_ok=True)
        shutil.copyfile(file, service / copy)
        # The account in a container is none of this machine's; others cannot enter `owners`.
        file.chmod(0o444)
        (service / copy).chmod(0o444)
    key.chmod(0o444)


def certify(name: str, key: Path, certificate: Path) -> None:
    """Make a key, and a certificate for the host `name` that it signs itself."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    host = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}")
    files = ("-keyout", key, "-out", certificate)
    command = ["openssl", "req", "-x509", *curve, *host, *files, "-days", VALID_DAYS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"openssl made no certificate for {name}: {done.stderr.strip()}")


def write_federation(file: Path, found: Sequence[str]) -> None:
    """Write the file for `terrine federation gather`; one that exists is the user's."""
    if not file.exists():
        owners = "".join(OWNER.format(name=name) for name in found)
        file.write_text(FEDERATION.format(quorum=max(1, len(found) - 1)) + owners)
        file.chmod(0o644)
        print(f"made {file}: describe your teachers there")
        return
    text = file.read_text()
    missing = [name for name in found if f'name = "{name}"' not in text]
    if missing:
        print(f"kept {file}, which does not name {', '.join(missing)}. Add to it:")
        print("".join(OWNER.format(name=name) for name in missing))


def remember(line: str) -> None:
    """Add a line to .env, unless it says already where the owners are."""
    file = Path(".env")
    text = file.read_text() if file.exists() else ""
    if not re.search(rf"^{line.partition('=')[0]}=", text, re.MULTILINE):
        with file.open("a") as env:
            env.write(("" if text.endswith("\n") or not text else "\n") + line + "\n")


def train_demo() -> None:
    """Train a teacher for each owner, in its own container, on its own part of the digits."""
    if not (OWNERS / "compose.yml").exists():
        sys.exit("There are no owners. First run `make owners`.")
    listed = re.findall(r"^  ([\w-]+):\n    extends", (OWNERS / "compose.yml").read_text(), re.M)
    program = (HERE / "demo_teacher.py").read_text()
    for number, name in enumerate(listed):
        run = ["docker", "compose", "run", "--rm", "--no-deps", "--no-TTY"]
        part = ["--entrypoint", "python", name, "-", str(number), str(len(listed))]
        done = subprocess.run([*run, *part], input=program, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"The teacher of {name} was not trained; see above.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("owners", help="a number, or names", nargs="?", default="3")
    parser.add_argument("--demo", action="store_true", help="train their teachers on digits")
    asked = parser.parse_args()
    if asked.demo:
        train_demo()
    else:
        make(asked.owners)

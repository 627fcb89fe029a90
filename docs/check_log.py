"""Checks exports of a Terrine ledger against its transparency log, with Python and `cryptography`.

    python check_log.py --policy POLICY [--checkpoint OLD]... [--log URL] EXPORT...

EXPORT is what `terrine ledger export` wrote, of a project or the log. POLICY says whose signatures
are needed, and where the log is (`log KEY URL`, or --log). OLD is a checkpoint that was
saved before, from `URL/checkpoint`. Formats: c2sp.org/tlog-tiles, tlog-checkpoint, tlog-cosignature
and tlog-policy; checking.md, beside this file. Nothing here is shared with Terrine.

Checked: that the log signed its checkpoint, and a quorum of witnesses cosigned it; that its leaves
have that root; that they begin with those of every OLD one; that every exported entry is a leaf,
once, in order; that no entry is older than a cosignature that does not cover it.
Not checked: the entries themselves. Run check_chain.py on the same files.
"""

import argparse
import base64
import hashlib
import hmac
import json
import sys
import urllib.request
from datetime import datetime, timedelta, timezone

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

WIDTH = 256
SLACK = timedelta(minutes=5)  # between clocks, and while a charge commits

Wrong = type("Wrong", (Exception,), {})


def vkey(text):
    """Return name, id, type and public key of `name+id+key`."""
    name, key_id, raw = text.split("+", 2)
    raw = base64.b64decode(raw, validate=True)
    digest = hashlib.sha256(name.encode() + b"\n" + raw).digest()
    if digest[:4].hex() != key_id or len(raw) != 33:
        raise Wrong(f"{text} is no key")
    return name, digest[:4], raw[0], raw[1:]


def policy(text):
    """Return the logs, the witnesses by name, and a function that knows what is enough."""
    logs, witnesses, groups, quorum = [], {}, {}, None
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        kind, *rest = words
        if kind == "log":
            logs.append((vkey(rest[0]), rest[1] if len(rest) > 1 else None))
        elif kind == "witness":
            witnesses[rest[0]] = vkey(rest[1])
        elif kind == "group":
            name, least, *members = rest
            groups[name] = ({"any": 1, "all": len(members)}.get(least) or int(least), members)
        elif kind == "quorum":
            (quorum,) = rest
        else:
            raise Wrong(f"{kind} is not of a policy")
    if quorum is None:
        raise Wrong("the policy has no quorum")

    def enough(cosigned, name=quorum):
        if name == "none":
            return True
        if name in groups:
            least, members = groups[name]
            return sum(enough(cosigned, member) for member in members) >= least
        return name in cosigned

    return logs, witnesses, enough


def signed(key, text, lines):
    """Return the time of a cosignature with this key, 0 for the log's; None if there is none."""
    name, key_id, kind, public = key
    for line in lines:
        dash, signer, encoded = line.split(" ")
        raw = base64.b64decode(encoded, validate=True)
        if (dash, signer, raw[:4]) != ("\u2014", name, key_id):
            continue
        when, message, signature = 0, text, raw[4:]
        if kind == 4:
            when, signature = int.from_bytes(raw[4:12], "big"), raw[12:]
            message = f"cosignature/v1\ntime {when}\n{text}"
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature, message.encode())
        except InvalidSignature:
            raise Wrong(f"the signature of {name} is wrong") from None
        return when
    return None


def opened(note, logs, witnesses):
    """Return size, root and cosignatures of a checkpoint that one of the logs signed."""
    text, _, tail = note.rpartition("\n\n")
    text, lines = text + "\n", tail.splitlines()
    origin, size, root = text.splitlines()[:3]
    if not any(signed(k, text, lines) == 0 for k, _ in logs if k[0] == origin):
        raise Wrong("the log did not sign it")
    times = {name: signed(key, text, lines) for name, key in witnesses.items()}
    return int(size), base64.b64decode(root), {n: t for n, t in times.items() if t is not None}


def fetch(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read()


def leaves(url, size):
    """Yield every entry of the log."""
    for index in range(-(-size // WIDTH)):
        width = min(WIDTH, size - index * WIDTH)
        digits = f"{index:03}" if index < 1000 else f"{index:0{-(-len(str(index)) // 3) * 3}}"
        parts = [digits[i : i + 3] for i in range(0, len(digits), 3)]
        path = "/".join([*("x" + part for part in parts[:-1]), parts[-1]])
        bundle = fetch(f"{url}/tile/entries/{path}{f'.p/{width}' if width < WIDTH else ''}")
        entries, at = [], 0
        while at < len(bundle):
            end = at + 2 + int.from_bytes(bundle[at : at + 2], "big")
            entries.append(bundle[at + 2 : end])
            at = end
        if len(entries) != width:
            raise Wrong(f"the log shows {len(entries)} entries where {width} should be")
        yield from entries


def roots(entries, sizes):
    """Return the root at each size (RFC 6962), and the place of every entry."""
    found, places, parts = {0: hashlib.sha256(b"").digest()}, {}, []
    for count, entry in enumerate(entries, start=1):
        if places.setdefault(entry, count - 1) != count - 1:
            raise Wrong(f"entry {count - 1} of the log is entry {places[entry]} again")
        node, low = hashlib.sha256(b"\0" + entry).digest(), count - 1
        while low & 1:
            node, low = hashlib.sha256(b"\1" + parts.pop() + node).digest(), low >> 1
        parts.append(node)
        if count in sizes:
            root = parts[-1]
            for part in parts[-2::-1]:
                root = hashlib.sha256(b"\1" + part + root).digest()
            found[count] = root
    return found, places


def check_export(path, places, cosigned):
    """Return how many entries of an export are in the log, once and in order, and how many not."""
    with open(path, encoding="utf-8", errors="surrogateescape") as lines:
        first = json.loads(next(lines))
        if first.get("leaf_key") is None:
            raise Wrong(f"{path} has no leaf key: nothing was logged when it was exported")
        key, last, new, found = bytes.fromhex(first["leaf_key"]), -1, 0, []
        for line in lines:
            entry = json.loads(line)
            leaf = hmac.new(key, bytes.fromhex(entry["hash"]), hashlib.sha256).digest()
            place = places.get(leaf)
            if place is None:
                new += 1
                continue
            if new or place <= last:
                raise Wrong(f"{path}: entry {entry['seq']} is in the log out of order")
            last = place
            found.append(place)
            made = datetime.fromisoformat(entry["created_at"].replace("Z", "+00:00"))
            for size, times in cosigned:
                first_time = datetime.fromtimestamp(min(times), timezone.utc)
                if place >= size and made + SLACK < first_time:
                    raise Wrong(f"{path}: entry {entry['seq']} is back-dated to {made}")
    return found, new


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--policy", required=True)
    parser.add_argument("--checkpoint", action="append", default=[])
    parser.add_argument("--log")
    parser.add_argument("exports", nargs="*")
    given = parser.parse_args()
    with open(given.policy) as file:
        logs, witnesses, enough = policy(file.read())
    url = (given.log or next((u for _, u in logs if u), None) or sys.exit("give --log URL")).rstrip(
        "/"
    )
    size, root, times = opened(fetch(f"{url}/checkpoint").decode(), logs, witnesses)
    if not enough(times):
        raise Wrong(f"cosigned by {sorted(times) or 'nobody'}: too few")
    seen = [("the checkpoint", size, root, times)]
    for path in given.checkpoint:
        with open(path, encoding="utf-8") as file:
            seen.append((path, *opened(file.read(), logs, witnesses)))
    if any(old > size for _, old, _, _ in seen):
        raise Wrong(f"the log has {size} entries, and had more before")
    made, places = roots(leaves(url, size), {each[1] for each in seen})
    for what, old, then, _ in seen:
        if made[old] != then:
            raise Wrong(f"{what} has another root than the {old} leaves: TWO HISTORIES")
    print(f"{url}: {size} entries, cosigned by {', '.join(sorted(times)) or 'nobody'}")
    cosigned, accounted = [(old, t.values()) for _, old, _, t in seen if t], set()
    for path in given.exports:
        found, new = check_export(path, places, cosigned)
        accounted.update(found)
        print(f"{path}: {len(found)} entries are in the log, {new} not yet")
    if given.exports:
        print(f"{size - len(accounted)} entries of the log are not of these exports")


if __name__ == "__main__":
    try:
        main()
    except Wrong as error:
        sys.exit(f"NOT INTACT: {error}")
    except Exception as error:  # a file, or an answer of the log, that is not of its format
        sys.exit(f"NOT INTACT: {type(error).__name__}: {error}")

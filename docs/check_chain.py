"""Checks an export of a Terrine ledger, or of its administrative log, with Python alone.

    python check_chain.py FILE...

FILE is what `terrine ledger export` wrote, of a project or the log. The format is described in
ledger.md, beside this file; nothing here is shared with Terrine.

Checked: the hash of the terms; every entry's number and hash; that the account names the last of
them, and has the balances that the entries add up to, within the budgets.
Not checked: whether prices, labels and publications are what the terms allow, the project's status,
what lies outside the file (caps, tokens, tallies), and whether the end was cut off or everything
written anew. `terrine ledger verify --file FILE` checks the first; check_log.py, the last.
"""

import hashlib
import json
import sys

TERMS = """name mechanism events terms budget delta_budget cap_budget opened_at
    ensemble__name ensemble__manifest_sha256 ensemble__info ensemble__units ensemble__epsilon
    ensemble__delta ensemble__rdp_order ensemble__cap ensemble__delta_cap""".split()
CHARGE = """project_id seq created_at query_digest input_digest outcome label figure cost delta
    cap_cost mechanism event""".split()
LOG = "seq created_at actor request_id action subject detail".split()
BYTES = {"ensemble__manifest_sha256", "query_digest", "input_digest"}
TIMES = {"opened_at", "created_at"}
JSON, WHOLE = {"mechanism", "event", "detail"}, {"project_id", "seq", "cost", "delta", "cap_cost"}
Wrong = type("Wrong", (Exception,), {})  # what is wrong with a file


def frame(tag, payload):
    return tag + len(payload).to_bytes(8, "big") + payload


def text(value):
    return frame(b"s", value.encode("utf-8", "surrogateescape"))


def field(name, value):
    """Return the frame of a field as it stands in the export."""
    if value is None:
        return frame(b"n", b"")
    if name in BYTES:
        return frame(b"b", bytes.fromhex(value))
    if name in TIMES:
        return frame(b"t", value.encode())
    if name in JSON or isinstance(value, str):
        return text(value if isinstance(value, str) else canonical(value))
    if isinstance(value, float):
        return frame(b"f", value.hex().encode())
    if isinstance(value, int) and not isinstance(value, bool):
        return frame(b"i", str(value).encode())
    raise Wrong(f"{name} is {value!r}")


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256(prefix, *frames):
    return hashlib.sha256(text(prefix) + b"".join(frames)).digest()


def link(prefix, previous, names, entry):
    """Return an entry's hash, given the one before."""
    frames = [frame(b"b", previous), *(field(name, entry[name]) for name in names)]
    if "counts" in entry:
        counts = canonical(entry["counts"]).encode()
        frames.append(frame(b"b", hashlib.sha256(counts).digest()))
    return sha256(prefix, *frames)


def chained(prefix, start, names, lines):
    """Yield every entry whose number and hash are right."""
    previous = start
    for number, line in enumerate(lines, start=1):
        entry = json.loads(line)
        if (entry["seq"], type(entry["seq"])) != (number, int):
            raise Wrong(f"entry {entry['seq']!r} is where {number} should be")
        previous = link(prefix, previous, names, entry)
        if previous.hex() != entry["hash"]:
            raise Wrong(f"entry {number} was altered, or does not follow the one before it")
        yield entry


def check_ledger(first, lines):
    account = first["account"]
    terms = json.loads(account["terms"])
    start = sha256("terrine/terms/1", *(field(name, account[name]) for name in TERMS))
    if start.hex() != account["genesis"]:
        raise Wrong("the terms are not those that the project was opened with")
    count, head, published = 0, start.hex(), []
    begins = terms.get("release")  # what the first entry pays for, once
    spent = {"spent": 0, "delta_spent": 0, "cap_spent": 0}
    for entry in chained("terrine/charge/1", start, CHARGE, lines):
        count, head = entry["seq"], entry["hash"]
        if (entry["project"], entry["project_id"]) != (account["name"], account["id"]):
            raise Wrong(f"entry {count} is one of another project")
        if any(type(entry[name]) is not int or entry[name] < 0 for name in WHOLE):
            raise Wrong(f"entry {count} has an amount that is no whole number")
        if (entry["outcome"] == "released") != (count == 1 and begins is not None):
            raise Wrong(f"entry {count} is not what the project begins with, or there are two")
        if count == 1 and begins and {n: entry[n] for n in begins["price"]} != begins["price"]:
            raise Wrong("entry 1 is not at the price of what the project begins with")
        spent["delta_spent"] += entry["delta"]
        if entry["outcome"] == "published":
            # The figure takes the place of all costs so far, except those of publishing.
            published.append([count, entry["figure"]])
            price = terms["schedule"]["price"]
            first = begins["price"] if begins else {"cost": 0, "cap_cost": 0}
            for name, part in (("spent", "cost"), ("cap_spent", "cap_cost")):
                spent[name] = first[part] + entry["figure"] + len(published) * price[part]
        else:
            spent["spent"] += entry["cost"]
            spent["cap_spent"] += entry["cap_cost"]
    if "allowance" in terms:  # the allowance bounds what all queries together cost the cap
        spent["cap_spent"] = min(spent["cap_spent"], terms["cap_budget"])
    if begins and not count:
        raise Wrong("what the project begins with was not charged")
    if (account["charges"], account["head"]) != (count, head):
        raise Wrong(f"the account is that of {account['charges']} entries, but {count} are here")
    if json.loads(account["published"]) != published:
        raise Wrong("the published figures are not those of the entries")
    for name, budget in zip(spent, ("budget", "delta_budget", "cap_budget"), strict=True):
        if not account[name] == spent[name] <= account[budget] == terms[budget]:
            raise Wrong(f"{name} is {account[name]}; the entries add up to {spent[name]}")
    return f"project {account['name']}: {count} entries, head {head}"


def check_log(first, lines):
    count, head = 0, sha256("terrine/log-start/1").hex()
    for entry in chained("terrine/log/1", sha256("terrine/log-start/1"), LOG, lines):
        count, head = entry["seq"], entry["hash"]
    if (first["entries"], first["head"]) != (count, head):
        raise Wrong(f"the log has {first['entries']} entries, but {count} are here")
    return f"administrative log: {count} entries, head {head}"


def check(path):
    """Return a line about an intact file."""
    kinds = {"terrine-export/1": check_ledger, "terrine-log/1": check_log}
    with open(path, encoding="utf-8", errors="surrogateescape") as lines:
        try:
            first = json.loads(next(lines, ""))
            return kinds[first["format"]](first, lines)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Wrong(f"it is no export, or was damaged ({error!r})") from None


if __name__ == "__main__":
    status = 0
    for path in sys.argv[1:] or sys.exit(__doc__):
        try:
            print(f"{path}: intact. {check(path)}")
        except (Wrong, OSError) as error:
            status = 1
            print(f"{path}: NOT INTACT: {error}")
    sys.exit(status)

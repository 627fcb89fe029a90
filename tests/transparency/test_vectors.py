"""Notes, checkpoints, trees and policies against what the specifications and others publish."""

# ruff: noqa: E501 - signatures stand as they were published
from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.servers import root_of
from support.wording import refuses
from terrine_protocol import transparency
from terrine_protocol.transparency import (
    Checkpoint,
    KeyKind,
    Note,
    NoteError,
    Policy,
    Proof,
    QuorumMissing,
    SignerKey,
    Tile,
    VerifierKey,
    tile_of,
)

# golang.org/x/mod/sumdb/note, note.go and note_test.go.
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETERS = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
ENOCH = "EnochRoot+af0cfe78+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
PROBLEM = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
)
BY_PETER = (
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6K"
    "E6RyyBwJnAM=\n"
)
BY_ENOCH = (
    "— EnochRoot rwz+eBzmZa0SO3NbfRGzPCpDckykFXSdeX+MNtCOXm2/5n2tiOHp+vAF1aGrQ5ovTG01oOTGwnWLox33WWd"
    "1RvMc+QQ=\n"
)
# c2sp.org/signed-note, "Verifier keys" and "Format".
FOO = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
FOO_NOTE = (
    "This is an example message.\n\n— example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAl"
    "TgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
)
OGNUNO = """Ognuno sta solo sul cuor della terra
trafitto da un raggio di sole:

ed è subito sera.

— quasimodo.example/salvatore NnugSzTjtVAewIS+Z/iJhUPeFDkO/5QQ2i5ddnGITLlC+EhfLW9oJKONrMouFSQU0xMcXxj99ihAQwaqP3ZekRwNtIc=
"""
# c2sp.org/tlog-cosignature, "Format"; its keys are not published.
SOFA = """example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
— witness.example.com/w1 jWbPPwAAAABkGFDLEZMHwSRaJNiIDoe9DYn/zXcrtPHeolMI5OWXEhZCB9dlrDJsX3b2oyin1nPZqhf5nNo0xUe+mbIUBkBIfZ+qnA==
"""
# A checkpoint of a public log with cosignatures of the public witness network, and their keys.
ARCHE = """arche2025h1.staging.ct.transparency.dev
1432088532
U7WM79jrzyhGZ5/GUBTpM7NzwdyfFx61t3RovgcC4Ro=

— arche2025h1.staging.ct.transparency.dev zTM8sQAAAZ5W0WdjBAMARjBEAiBjW5IQf9pvsYLfQFX6hoGREPMHbdQ3urbllzalApkptQIgIpwtEroeW2BXaHAI4kJXFbon5Ch9MNL5zRNZ55lvGt0=
— arche2025h1.staging.ct.transparency.dev ui8GwCF1+kWqZrxGdhj4aX3gcw7XUlXQQabg/27lefwhUkzbC3NygNI75MdhL1bfTW9g8Ei59RA23oHP7Ry1k3ZFWwQ=
— transparency.dev/DEV:witness-little-garden 2AQqhwAAAABqEiEgzgFIqqhbUoDwjMWE6UP8nd8/KYTzwZ2rhIgcqoXHAwVkjZr4AscylP3v7sEodkRAErumC2q44vdgJY096st5BQ==
— witness1.smartit.nu/witness1 pIyCDwAAAABqEiEghIp82KWebrw7/oHQwlTAm3g2RKS4+eebl8eO0WH+/iEcxZ75W3u5hNI7TOQtmJbqmNWVuE0tgh0XwzdZsDsUAQ==
— remora.n621.de 2net5wAAAABqEiEgPlfF3V06o0Y+fHM+J5J9s27wgxxcOVSpZ/2g/KSiXCg9DEZI+aVCIobWX9sXTynk5XeU/zZ0WBxtqB0DrAWfBw==
— witness.stagemole.eu Z/euoAAAAABqEiEgw0i+7g2ENfDAWHmtRzCfKTHSDwYDJA2NmKeGi9Y8FtEyOUvVr+AJmIY/2TUFucgKi7lI7cUiOvKFYe/TmN9DAg==
"""
ARCHE_LOG = (
    "arche2025h1.staging.ct.transparency.dev+ba2f06c0+AU0vHmlGCS/PdN8b2OaGmKprLI8HKM+dJ472xgFYh15f"
)
ARCHE_WITNESSES = {
    "garden": "transparency.dev/DEV:witness-little-garden+d8042a87"
    "+BCtusOxINQNUTN5Oj8HObRkh2yHf/MwYaGX4CPdiVEPM",
    "smartit": "witness1.smartit.nu/witness1+a48c820f+BPSFWg9G6KPiO7QPryYO5Xq4oYJJ+kAvLKLSimDhoxMO",
    "remora": "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2",
    "mullvad": "witness.stagemole.eu+67f7aea0+BEqSG3yu9YrmcM3BHvQYTxwFj3uSWakQepafafpUqklv",
}

# github.com/transparency-dev/merkle, proof/verify_test.go: leaves and roots, and which proofs (index from 1).
LEAVES = [
    bytes.fromhex(leaf)
    for leaf in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    bytes.fromhex(root)
    for root in (
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    )
]
INCLUSION = [(1, 1), (1, 8), (6, 8), (3, 3), (2, 5)]
CONSISTENCY = [(1, 1), (1, 8), (6, 8), (2, 5), (6, 7)]
SOME = bytes.fromhex("abacaba000000000000000000000000000000000000000000060061e00123456")


HASHES = [transparency.leaf_hash(leaf) for leaf in LEAVES]


def perfect(height: int, index: int) -> bytes:
    """Straight from the definition in RFC 6962, section 2.1."""
    if height == 0:
        return HASHES[index]
    return transparency.node_hash(
        perfect(height - 1, 2 * index), perfect(height - 1, 2 * index + 1)
    )


def flipped(proof: list[bytes], at: int) -> list[bytes]:
    wrong = bytes([proof[at][0] ^ 8]) + proof[at][1:]
    return [*proof[:at], wrong, *proof[at + 1 :]]


def test_a_note_of_go_is_verified_and_made_byte_for_byte() -> None:
    key = SignerKey.parse(PETERS)
    assert str(key.verifier) == PETER
    assert key.secret == PETERS
    assert str(Note(PROBLEM, (key.sign(PROBLEM),))) == f"{PROBLEM}\n{BY_PETER}"
    note = Note.parse(f"{PROBLEM}\n{BY_PETER}{BY_ENOCH}")
    keys = [VerifierKey.parse(PETER), VerifierKey.parse(ENOCH)]
    assert set(note.signers(keys)) == set(keys)
    assert set(note.signers(keys[:1])) == {keys[0]}
    assert not note.signers([VerifierKey.parse(FOO)])
    assert PETERS.split("+")[-1] not in repr(key)


def test_the_notes_of_the_specification_are_read() -> None:
    key = VerifierKey.parse(FOO)
    assert str(key) == FOO
    assert key in Note.parse(FOO_NOTE).signers([key])
    note = Note.parse(OGNUNO.encode())
    assert note.text.splitlines()[-2:] == ["", "ed è subito sera."]
    assert str(note) == OGNUNO


def test_a_note_of_which_a_byte_was_changed_is_refused() -> None:
    with refuses(NoteError, "PeterNeumann"):
        Note.parse(f"{PROBLEM[:-2]}!\n\n{BY_PETER}").signers([VerifierKey.parse(PETER)])


NOT_NOTES = [
    b"",
    b"text\n",
    b"text\n\n",
    b"text\n\nno dash x08go/ZJkuA=\n",
    f"text\n\n{BY_PETER}".removesuffix("\n").encode(),
    f"te\0xt\n\n{BY_PETER}".encode(),
    f"text\r\n\n{BY_PETER}".encode(),
    b"\xff\n\n" + BY_PETER.encode(),
    f"text\n\n{BY_PETER.replace('PeterNeumann', 'Peter+Neumann')}".encode(),
    f"text\n\n{BY_PETER.replace('PeterNeumann', 'Peter Neumann')}".encode(),
    ("text\n\n" + BY_PETER.replace("Neumann", "\u2003Neumann")).encode(),
    "text\n\n— PeterNeumann AQID\n".encode(),
    "text\n\n— PeterNeumann x08go=/A\n".encode(),
    f"text\n\n{BY_PETER * 101}".encode(),
    b"x" * 70_000 + f"\n\n{BY_PETER}".encode(),
]


# The first four: github.com/transparency-dev/formats, note/note_cosigv1_test.go.
NOT_KEYS = [
    "",
    "bananas.sigstore.dev+12344556",
    "rekor.sigstore.dev+12345678+THIS_IS_NOT_BASE64!",
    "rekor.sigstore.dev+12345678+AwEB",
    FOO.replace("530d903a", "530d903b"),
    FOO.replace("530d903a", "53 0d 90 3a"),
    FOO.replace("530d903a", "530D903A"),
    FOO.replace("example.com/foo", "example.com/bar"),
    FOO.replace("+530d903a", ""),
]


def test_the_cosignature_of_the_specification_says_when() -> None:
    note = Note.parse(SOFA)
    assert Checkpoint.parse(note.text).size == 20852163
    assert int.from_bytes(note.signatures[1].signed[:8], "big") == 1679315147
    assert str(note) == SOFA


def test_cosignatures_of_the_public_network_are_verified() -> None:
    lines = [f"witness {name} {key}" for name, key in ARCHE_WITNESSES.items()]
    policy = Policy.parse(
        "\n".join(
            [f"log {ARCHE_LOG}", *lines, f"group all 4 {' '.join(ARCHE_WITNESSES)}", "quorum all"]
        ).encode()
    )
    found = policy.open(ARCHE)
    assert found.checkpoint.size == 1432088532
    assert found.cosigned == dict.fromkeys(ARCHE_WITNESSES, 0x6A122120)
    assert transparency.open_checkpoint(ARCHE, policy.logs[0].key) == found.checkpoint
    with pytest.raises(NoteError):
        policy.open(ARCHE.replace("1432088532", "1432088531"))
    fewer = "".join(line for line in ARCHE.splitlines(True) if "remora" not in line)
    with refuses(QuorumMissing, "garden", "mullvad", "smartit"):
        policy.open(fewer)


def test_a_cosignature_of_our_own_is_verified_as_others_are() -> None:
    key = SignerKey("w.example/1", KeyKind.COSIGNATURE, bytes(range(32)))
    text = Checkpoint("log.example", 5, ROOTS[4]).text
    note = Note(text, (key.sign(text, 1727964367),))
    assert Note.parse(str(note)).signers([key.verifier]) == {key.verifier: 1727964367}
    moved = replace(note.signatures[0], signed=bytes(8) + note.signatures[0].signed[8:])
    with pytest.raises(NoteError):
        Note(text, (moved,)).signers([key.verifier])


NOT_CHECKPOINTS = [
    "log\n5\n",
    "log\n05\n" + base64.b64encode(SOME).decode() + "\n",
    "log\n-5\n" + base64.b64encode(SOME).decode() + "\n",
    "log\n+5\n" + base64.b64encode(SOME).decode() + "\n",
    f"log\n{2**63}\n" + base64.b64encode(SOME).decode() + "\n",
    "log\n٥\n" + base64.b64encode(SOME).decode() + "\n",
    "log\n5\n" + base64.b64encode(SOME[:-1]).decode() + "\n",
    "log\n5\n" + base64.b64encode(SOME).decode() + "\n\n",
    "\n5\n" + base64.b64encode(SOME).decode() + "\n",
]


def test_the_roots_are_those_of_others() -> None:
    assert root_of([]) == transparency.EMPTY_ROOT
    for size, root in enumerate(ROOTS, start=1):
        assert root_of(HASHES[:size]) == root
        assert transparency.subtree_root(0, size, perfect) == root


@pytest.mark.parametrize(("place", "size"), INCLUSION)
def test_inclusion_is_proven_in_the_trees_of_others(place: int, size: int) -> None:
    index, root, leaf = place - 1, ROOTS[size - 1], HASHES[place - 1]
    proof = transparency.prove_inclusion(index, size, perfect)
    transparency.check_inclusion(leaf, index, size, root, proof)
    wrong: list[Any] = [
        (leaf, index - 1, size, root, proof),
        (leaf, index + 1, size, root, proof),
        (leaf, index ^ 2, size, root, proof),
        (leaf, index, size * 2, root, proof),
        (leaf, index, size // 2, root, proof),
        (b"WrongLeaf", index, size, root, proof),
        (leaf, index, size, transparency.EMPTY_ROOT, proof),
        (leaf, index, size, SOME, proof),
        (leaf, index, size, root, [*proof, b""]),
        (leaf, index, size, root, [*proof, root]),
        (leaf, index, size, root, [b"", *proof]),
        (leaf, index, size, root, [root, *proof]),
        *((leaf, index, size, root, flipped(proof, at)) for at in range(len(proof))),
        *([(leaf, index, size, root, proof[:-1])] if proof else []),
        *([(leaf, index, size, root, [proof[0], SOME, *proof[1:]])] if len(proof) > 1 else []),
    ]
    for case in wrong:
        with pytest.raises(transparency.ProofError):
            transparency.check_inclusion(*case)


@pytest.mark.parametrize(("old", "size"), CONSISTENCY)
def test_consistency_is_proven_in_the_trees_of_others(old: int, size: int) -> None:
    before, after = ROOTS[old - 1], ROOTS[size - 1]
    proof = transparency.prove_consistency(old, size, perfect)
    transparency.check_consistency(old, size, before, after, proof)
    if not proof:
        return
    wrong: list[Any] = [
        (old - 1, size, before, after, proof),
        (old + 1, size, before, after, proof),
        (old ^ 2, size, before, after, proof),
        (old, size * 2, before, after, proof),
        (old, size // 2, before, after, proof),
        (old, size, b"WrongRoot", after, proof),
        (old, size, before, b"WrongRoot", proof),
        (old, size, after, before, proof),
        (old, size, before, after, []),
        (old, size, before, after, [*proof, b""]),
        (old, size, before, after, [*proof, before]),
        (old, size, before, after, [*proof, after]),
        (old, size, before, after, [b"", *proof]),
        (old, size, before, after, [before, *proof]),
        (old, size, before, after, [after, *proof]),
        (old, size, before, after, [proof[0], *proof]),
        (old, size, before, after, proof[:-1]),
        *((old, size, before, after, flipped(proof, at)) for at in range(len(proof))),
    ]
    for case in wrong:
        with pytest.raises(transparency.ProofError):
            transparency.check_consistency(*case)


def test_small_and_equal_trees_are_consistent_only_if_they_are_the_same() -> None:
    # As in verify_test.go, but that a tree of no leaves has one root (RFC 6962, section 2.1).
    transparency.check_consistency(0, 0, transparency.EMPTY_ROOT, transparency.EMPTY_ROOT, [])
    transparency.check_consistency(0, 1, transparency.EMPTY_ROOT, SOME, [])
    transparency.check_consistency(1, 1, SOME, SOME, [])
    for old, size, before, after, proof in [
        (1, 1, ROOTS[0], SOME, []),
        (0, 1, SOME, ROOTS[0], []),
        (1, 0, ROOTS[0], transparency.EMPTY_ROOT, []),
        (2, 1, ROOTS[1], ROOTS[0], []),
        (1, 2, ROOTS[0], ROOTS[1], []),
        (0, 0, transparency.EMPTY_ROOT, SOME, []),
        (0, 0, transparency.EMPTY_ROOT, transparency.EMPTY_ROOT, [SOME]),
        (0, 1, transparency.EMPTY_ROOT, transparency.EMPTY_ROOT, [SOME]),
        (1, 1, SOME, SOME, [SOME]),
    ]:
        with pytest.raises(transparency.ProofError):
            transparency.check_consistency(old, size, before, after, proof)


def test_tiles_have_the_paths_and_widths_of_the_specification() -> None:
    assert Tile(0, 1234067).path == "0/x001/x234/067"
    assert Tile.parse("0/x001/x234/067") == Tile(0, 1234067)
    size = 70_000
    assert tile_of(size, 0, 272) == Tile(0, 272)
    assert tile_of(size, 0, 273) == Tile(0, 273, 112)
    assert tile_of(size, 1, 1) == Tile(1, 1, 17)
    assert tile_of(size, 2, 0) == Tile(2, 0, 1)
    assert tile_of(256, 1, 0) == Tile(1, 0, 1)
    for level, index in [(0, 274), (1, 2), (2, 1), (3, 0)]:
        with pytest.raises(transparency.ProofError):
            tile_of(size, level, index)


NOT_TILES = [
    "",
    *[
        "0",
        "0/0",
        "0/00",
        "0/0000",
        "00/000",
        "64/000",
        "0/x000/000",
        "0/001/067",
        "0/x001/x067",
        "0/000.p/0",
    ],
    *[
        "0/000.p/256",
        "0/000.p/01",
        "0/000.p/257",
        "-1/000",
        "0/000/",
        "0/٠٠٠",
        "entry/000",
        "0/../000",
    ],
    "0/" + "x001/" * 30 + "000",
]


# github.com/transparency-dev/formats, proof/tlog_proof_test.go.
TWO = [hashlib.sha256(text).digest() for text in (b"hash1", b"hash2")]
TWO_LINES = [base64.b64encode(each).decode() for each in TWO]


def test_proofs_are_written_as_others_write_them() -> None:
    plain = Proof(5, tuple(TWO), "test checkpoint\n")
    assert str(plain) == (
        f"c2sp.org/tlog-proof@v1\nindex 5\n{TWO_LINES[0]}\n{TWO_LINES[1]}\n\ntest checkpoint\n"
    )
    extra = Proof(10, (TWO[0],), "checkpoint data\n", b"extra information")
    line = base64.b64encode(b"extra information").decode()
    assert str(extra) == (
        f"c2sp.org/tlog-proof@v1\nextra {line}\nindex 10\n{TWO_LINES[0]}\n\ncheckpoint data\n"
    )
    empty = Proof(0, (), "checkpoint\n")
    assert str(empty) == "c2sp.org/tlog-proof@v1\nindex 0\n\ncheckpoint\n"
    assert [Proof.parse(str(each)) for each in (plain, extra, empty)] == [plain, extra, empty]


NOT_PROOFS = [
    "wrong-header\nindex 0\n\ncheckpoint\n",
    "c2sp.org/tlog-proof@v1\nextra !!notbase64!!\nindex 0\n\ncheckpoint\n",
    "c2sp.org/tlog-proof@v1\n\n\ncheckpoint\n",
    "c2sp.org/tlog-proof@v1\nindex notanumber\n\ncheckpoint\n",
    "c2sp.org/tlog-proof@v1\nindex -5\n\ncheckpoint\n",
    "c2sp.org/tlog-proof@v1\nindex 0\n!!notbase64!!\n\ncheckpoint\n",
    f"c2sp.org/tlog-proof@v1\nindex 0\n{base64.b64encode(bytes(64)).decode()}\n\ncheckpoint\n",
    f"c2sp.org/tlog-proof@v1\nindex 0\n{'a' * 65 * 1024}\n",
]


def test_a_proof_is_checked_with_its_checkpoint() -> None:
    log = SignerKey("log.example", KeyKind.ED25519, bytes(32))
    text = Checkpoint("log.example", 8, ROOTS[7]).text
    note = str(Note(text, (log.sign(text),)))
    policy = Policy.parse(f"log {log.verifier}\nquorum none\n".encode())
    path = transparency.prove_inclusion(5, 8, perfect)
    proof = Proof.parse(str(Proof(5, tuple(path), note)))
    assert proof.check(LEAVES[5], policy).size == 8
    with pytest.raises(transparency.ProofError):
        proof.check(LEAVES[4], policy)
    other = Policy.parse(f"log {FOO}\nquorum none\n".encode())
    with pytest.raises(NoteError):
        proof.check(LEAVES[5], other)


W = [SignerKey(f"Wit{n}", KeyKind.COSIGNATURE, bytes([n]) * 32).verifier for n in range(1, 7)]
W1, W2 = (f"witness w{n} {W[n - 1]}" for n in (1, 2))


def test_the_policy_of_the_specification_is_read() -> None:
    # c2sp.org/tlog-policy, "Example policy".
    names = ["X1", "X2", "X3", "Y1", "Y2", "Y3"]
    witnesses = "\n".join(f"witness {name} {key}" for name, key in zip(names, W, strict=True))
    text = f"""log {FOO}

{witnesses}
group X-witnesses 2 X1 X2 X3
\tgroup Y-witnesses any Y1 Y2 Y3
# both
  # of them
group X-and-Y  all  X-witnesses Y-witnesses
quorum X-and-Y"""
    policy = Policy.parse(text.encode())
    assert policy.is_satisfied_by({"X1", "X3", "Y2"})
    assert not policy.is_satisfied_by({"X1", "X2", "X3"})
    assert not policy.is_satisfied_by({"X1", "Y1", "Y2", "Y3"})
    assert not policy.is_satisfied_by(set())
    assert Policy.parse(b"quorum none\n").is_satisfied_by(set())
    odd = Policy.parse(
        f"witness K\u212alvin {W[0]} https://w.example/\nquorum K\u212alvin".encode()
    )
    assert [w.url for w in odd.witnesses.values()] == ["https://w.example/"]


NOT_POLICIES = [
    # github.com/transparency-dev/formats, policy/tlog_policy_test.go.
    "quorum none\n\x01",
    "quorum none\r\n",
    "quibble w1\nquorum none\n",
    f"{W1} https://w1.example.com/ # comment\nquorum w1\n",
    "log\nquorum none\n",
    "log garbage\nquorum none\n",
    f"log {FOO}\nlog {FOO} https://log.example.com/\nquorum none\n",
    "witness w1\nquorum none\n",
    f"witness w1 {FOO}\nquorum w1\n",
    f"log {W[0]}\nquorum none\n",
    f"witness none {W[0]}\nquorum none\n",
    f"witness w1 {W[0]}\nwitness w1 {W[1]}\nquorum w1\n",
    f"{W1}\ngroup w1 any w1\nquorum w1\n",
    f"{W1}\ngroup g1 1\nquorum w1\n",
    f"{W1}\ngroup none any w1\nquorum none\n",
    f"{W1}\ngroup g1 0 w1\nquorum g1\n",
    f"{W1}\ngroup g1 -1 w1\nquorum g1\n",
    f"{W1}\ngroup g1 2 w1\nquorum g1\n",
    f"{W1}\ngroup g1 any w2\nquorum g1\n",
    f"group g1 any w1\n{W1}\nquorum g1\n",
    f"{W1}\ngroup g1 any none w1\nquorum g1\n",
    f"{W1}\ngroup g1 all w1 w1\nquorum g1\n",
    f"{W1}\n{W2}\ngroup g1 any w1 w2\ngroup g2 any w1\nquorum g1\n",
    f"{W1}\n",
    f"{W1}\nquorum w1\nquorum w1\n",
    "quorum unknown\n",
    f"quorum w1\n{W1}\n",
    "quorum\n",
    f"{W1}\nwitness w2 {VerifierKey('impostor', KeyKind.COSIGNATURE, W[0].public)}\nquorum w1\n",
]
REFUSED: list[tuple[Callable[[Any], object], Sequence[str | bytes]]] = [
    (Note.parse, NOT_NOTES),
    (VerifierKey.parse, NOT_KEYS),
    (Checkpoint.parse, NOT_CHECKPOINTS),
    (Tile.parse, NOT_TILES),
    (Proof.parse, NOT_PROOFS),
    (Policy.parse, [text.encode() for text in NOT_POLICIES]),
]


@pytest.mark.parametrize(
    ("parse", "text"), [(parse, text) for parse, texts in REFUSED for text in texts]
)
def test_what_is_none_is_refused(parse: Callable[[Any], object], text: str | bytes) -> None:
    with pytest.raises(NoteError):
        parse(text)

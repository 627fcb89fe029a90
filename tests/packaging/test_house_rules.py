"""Rules for the repository, checked on every tracked file."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.processes import run_program
from support.wording import holds

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = {
    ".csv",
    ".gz",
    ".idx",
    ".ipynb",
    ".json",
    ".npy",
    ".npz",
    ".onnx",
    ".png",
    ".safetensors",
    ".svg",
}
MAX_DATA_BYTES = 2_000_000
WORDS = re.compile(r"[^\W\d]{2,}[,;:.]? [^\W\d]{2,}")
COMMAND = re.compile(r"^--\w|(^|[`'])(terrine|make|pip|openssl|[A-Z]{4,}) ")
NO_SENTENCES = {
    "two words": "a token, which must be in no message",
    "schema: missing: trigger": "left out of tests/wording.txt, as the triggers change",
}
"""Texts that tests look for although they have several words, and why."""
IN_BACKTICKS = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")
SPELLED = re.compile(r"(?<![\w./:=\"'-])[a-z]+(?:_[a-z0-9]+)+(?![\w=(:\"'/])")
"""A name, as only code spells names."""
SQL = re.compile(r"\b(?:SELECT|INSERT|UPDATE|CREATE)\b")
SPELLED_OUT = """
def f():
    '''Ask noisy_votes, `noisy_votes` and noisy_count.

    noisy_votes: [B], of all
    from votes import noisy_votes
    $ terrine parameters noisy_votes'''
    say(f'{n} answers of noisy_votes, in {m}', 'noisy_votes', 'SELECT noisy_votes FROM it')
    say('give noisy_votes:sigma=3 or --noisy_votes')
""".strip()
"""Two names that should be in backticks, and many that need not."""
OTHERS_NAMES = {
    "count_NAME": "columns of a frame of answers, one for each class",
    "feature_names_in_": "scikit-learn's",
    "n_features_in_": "scikit-learn's",
    "sha256sum": "a command",
}
"""Names in backticks that are not of our code, and whose they are."""
SENTENCES = """
@pytest.mark.parametrize(("given", "why"), [("a", "nobody is called so"), ("b", "12")])
def test_refusals(given: str, why: str) -> None:
    assert why in refused(given)
    assert f"there is no {given}" in refused(given)
    assert refused(given).startswith("there is none")
    for said in ("not an array", "array"):
        assert said in refused(given)
    assert "terrine init" in refused(given)
    assert given in {"one name", "another name"}
    holds(refused(given), "array", 12)
"""
"""What a test should not do in its first four assertions, and may do in the others."""


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    listing = run_program("git", "ls-files", "-z", cwd=REPOSITORY)
    if listing.returncode != 0:
        pytest.skip(f"NOT A GIT CHECKOUT, so its files cannot be listed: {listing.stderr.strip()}")
    paths = [REPOSITORY / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def findings(paths: list[Path], *patterns: str) -> list[str]:
    """`file:line: text` of every line that matches. Files that are not text have no lines."""
    wanted = re.compile("|".join(patterns))
    found = []
    for path in paths:
        if not wanted.search(text := text_of(path)):
            continue
        name, lines = path.relative_to(REPOSITORY), text.splitlines()
        found += [f"{name}:{i}: {line}" for i, line in enumerate(lines, 1) if wanted.search(line)]
    return found


@cache
def text_of(path: Path) -> str:
    """What a file holds; nothing of one that is not text."""
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""


# Patterns are written so that they do not match themselves: this file is tracked, too.


def test_no_file_names_a_path_on_a_developers_machine(tracked: list[Path]) -> None:
    places = (r"(?<![\w.}])/[w]ork/", r"/[h]ome/\w+/", r"/[U]sers/\w+/", r"/[t]mp/bash_")
    assert findings(tracked, *places) == []


def test_the_product_does_not_reach_outside_its_repository(tracked: list[Path]) -> None:
    product = [
        p for p in tracked if p.relative_to(REPOSITORY).parts[0] not in ("tests", "benchmarks")
    ]
    assert findings(product, r"\.\./[s]hared") == []


def test_no_file_names_a_package_registry(tracked: list[Path]) -> None:
    assert findings(tracked, r"[p]ypi\.org", r"[p]ythonhosted", r"[d]ownload\.pytorch") == []


def test_no_file_has_a_todo(tracked: list[Path]) -> None:
    assert findings(tracked, r"\b[T]ODO\b", r"\b[F]IXME\b", r"\b[X]XX\b") == []


def test_a_name_in_backticks_is_one_and_a_local_hides_no_import(tracked: list[Path]) -> None:
    """What a renaming leaves behind, in what is installed."""
    roots = ("server", "client", "models")
    trees = {
        path: ast.parse(text_of(path))
        for path in tracked
        if path.suffix == ".py" and path.relative_to(REPOSITORY).parts[0] in roots
    }
    known = {*dir(builtins), *OTHERS_NAMES}
    for path, tree in trees.items():
        known |= {*path.relative_to(REPOSITORY).with_suffix("").parts, *names_of(tree)}
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{number}: nothing is named {name}"
        for path in trees
        for number, line in enumerate(text_of(path).splitlines(), 1)
        for name in IN_BACKTICKS.findall(line)
        if not known.issuperset(filter(None, name.split(".")))
    ]
    wrong += [
        f"{path.relative_to(REPOSITORY)}:{line}: {name} hides what is imported"
        for path, tree in trees.items()
        for line, name in hidden_imports(tree)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_name_of_code_in_a_sentence_is_in_backticks(tracked: list[Path]) -> None:
    """In messages, help, fields and docstrings of what is installed; mechanisms, too."""
    trees = {
        path: ast.parse(text_of(path))
        for path in tracked
        if path.suffix == ".py"
        and path.relative_to(REPOSITORY).parts[0] in ("server", "client", "models")
    }
    named = {path.stem for path in trees} | {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name} stands there without backticks"
        for path, tree in trees.items()
        for line, name in bare_names(tree, named)
    ]
    assert not wrong, "\n".join(wrong)


def test_a_name_without_backticks_is_seen() -> None:
    tree = ast.parse(SPELLED_OUT)
    assert list(bare_names(tree, {"noisy_votes"})) == [(2, "noisy_votes"), (7, "noisy_votes")]


def bare_names(tree: ast.Module, named: set[str]) -> Iterator[tuple[int, str]]:
    """Lines and names, of those given, that sentences hold without backticks.

    A line that describes a field (`name: …`), imports or is a command is code; so is a text of SQL.
    """
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if not WORDS.search(node.value) or SQL.search(node.value):
            continue
        text = re.sub(r"`[^`]*`|^.*\b(?:import|terrine) .*$", "", node.value, flags=re.MULTILINE)
        yield from ((node.lineno, name) for name in SPELLED.findall(text) if name in named)


def test_what_a_renaming_leaves_behind_is_seen() -> None:
    tree = ast.parse(
        "from re import sub, match\n"
        "def f(x, *, match): sub = 1; y = [0 for match in x]; z.sub = 'colour shape'; return y\n"
    )
    assert sorted(name for _, name in hidden_imports(tree)) == ["match", "sub"]
    assert names_of(tree) == {"sub", "match", "f", "x", "y", "z", "re", "colour", "shape"}


def names_of(tree: ast.Module) -> set[str]:
    """All names that code uses or defines, and words of its texts except docstrings."""
    names: set[str] = set()
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                names.add(name)
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                names.add(name)
            case ast.Import(names=imported) | ast.ImportFrom(names=imported):
                names |= {part for each in imported for part in each.name.split(".")}
                names |= set((getattr(node, "module", None) or "").split("."))
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                names |= set(re.findall(r"\w+", text))
    return names


def hidden_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and names that functions assign to and that the module imports."""
    nodes = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {each.asname or each.name for node in nodes for each in node.names}
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node): node for function in functions for node in ast.walk(function)}
    for node in inside.values():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in imported:
            yield node.lineno, node.id


def test_tests_hold_errors_to_names_and_not_to_sentences(tracked: list[Path]) -> None:
    """`refuses` and `holds` (tests/support/wording.py) do; tests/wording.txt has the sentences."""
    assert findings(tracked, r"[m]atch=\w?[\"'][^\"' ]+ [^\"' ]+ [^\"']") == []
    tests = [
        p for p in tracked if p.suffix == ".py" and p.relative_to(REPOSITORY).parts[0] == "tests"
    ]
    found = [(path, *each) for path in tests for each in sentences(ast.parse(text_of(path)))]
    assert {text for _, _, text in found} >= NO_SENTENCES.keys(), "say no more than there is"
    wrong = [(path, line, text) for path, line, text in found if text not in NO_SENTENCES]
    assert not wrong, "\n".join(
        f"{path.relative_to(REPOSITORY)}:{line}: {text!r}: hold it by its words"
        for path, line, text in wrong
    )


def test_a_sentence_that_a_test_looks_for_is_seen() -> None:
    assert {text for _, text in sentences(ast.parse(SENTENCES))} == {
        "nobody is called so",
        "there is no …",
        "there is none",
        "not an array",
    }


def sentences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines and texts of two words or more that a test looks for in what was said.

    What is compared as a whole, or looked for in a set, is a name. So is a command to type. Those
    of `parametrize` stand for a parameter.
    """
    for test in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        parts = [n for n in ast.walk(test) if isinstance(n, ast.Call | ast.Compare | ast.For)]
        given = {name: values for each in parts for name, values in parameters(each)}
        for node in [node for each in parts for node in looked_for(each)]:
            for one in given.get(node.id, []) if isinstance(node, ast.Name) else [node]:
                if WORDS.search(literal(one)) and not COMMAND.search(literal(one)):
                    yield one.lineno, literal(one)


def looked_for(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[where]):
            a_set = isinstance(where, ast.Set | ast.List | ast.Tuple | ast.Dict)
            return [] if a_set else [node.left]
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith")):
            return node.args
    return []


def parameters(node: ast.AST) -> Iterator[tuple[str, list[ast.expr]]]:
    """Names of parameters, with their values; of a loop over pairs as well."""
    names: ast.expr
    match node:
        case ast.Call(func=ast.Attribute(attr="parametrize"), args=[names, values, *_]):
            pass
        case ast.For(target=names, iter=values):
            pass
        case _:
            return
    if not isinstance(values, ast.List | ast.Tuple):
        return
    if not isinstance(names, ast.Tuple):
        yield getattr(names, "id", literal(names)), values.elts
        return
    rows = [row.elts for row in values.elts if isinstance(row, ast.Tuple)]
    for at, name in enumerate(names.elts):
        yield getattr(name, "id", literal(name)), [row[at] for row in rows if at < len(row)]


def literal(node: ast.expr) -> str:
    """Return the text of a literal, with … for each value in it; nothing for anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            "…" if isinstance(v, ast.FormattedValue) else literal(v) for v in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_every_page_that_a_file_names_is_there(tracked: list[Path]) -> None:
    """Comments, YAML and messages name pages of docs/; capitals stand for a name to fill in."""
    named = re.compile(r"(?<![\w/.-])docs/[\w./-]*?\.(?:md|py|ipynb|jsonl?|png|webp)\b")
    missing = [
        f"{path.relative_to(REPOSITORY)}: {page}"
        for path in tracked
        for page in named.findall(text_of(path))
        if Path(page).stem.islower() and not (REPOSITORY / page).exists()
    ]
    assert not missing, "\n".join(missing)


def test_every_test_that_a_page_names_is_there(tracked: list[Path]) -> None:
    """In the proofs and the threat model: what an auditor would run."""
    tests = [p for p in tracked if p.relative_to(REPOSITORY).parts[0] == "tests"]
    there = {path.stem for path in tests} | {
        name for path in tests for name in re.findall(r"(?:def|class) (\w+)", text_of(path))
    }
    named = re.compile(r"`[\w/]*\b(test_\w+)(?:\.py)?(?:::(\w+))?(?:::(\w+))?`")
    missing = [
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in tracked
        if path.suffix == ".md" and path.relative_to(REPOSITORY).parts[0] == "docs"
        for found in named.findall(text_of(path))
        for name in filter(None, found)
        if name not in there
    ]
    assert not missing, "\n".join(missing)


def test_no_secret_is_shipped(tracked: list[Path]) -> None:
    secrets = (
        r"-----BEGIN [A-Z ]*PRIVATE KEY",
        r"\bA[K]IA[0-9A-Z]{16}\b",
        r"\bg[h][pousr]_[0-9A-Za-z]{36}\b",
        r"\bterrine_[0-9A-Za-z]+_[0-9A-Za-z_-]{43,}",
    )
    assert findings(tracked, *secrets) == []
    private = re.compile(r"(^|/)secrets/|\.(key|pem|sqlite\d?|env)$")
    assert [p for p in tracked if private.search(p.relative_to(REPOSITORY).as_posix())] == []


def test_shipped_data_is_small(tracked: list[Path]) -> None:
    sizes = {p.relative_to(REPOSITORY): p.stat().st_size for p in tracked if p.suffix in DATA}
    assert sum(sizes.values()) < MAX_DATA_BYTES, sizes


def test_the_licence_exists() -> None:
    licence = (REPOSITORY / "LICENSE").read_text()
    holds(licence, "Apache", "License")
    assert "Version 2.0" in licence
    assert 'license = "Apache-2.0"' in (REPOSITORY / "pyproject.toml").read_text()

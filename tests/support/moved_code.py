"""Compare each function of the product with what it was at a revision: was it only moved?

    python tests/support/moved_code.py REVISION [OLD=NEW ...]

It prints how many are the same and names those that are gone, new or changed. Which module a
function stands in, how it reaches another module's names and where it imports do not count, nor
do the names that are given as renamed.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCES = ("server", "client", "models", "migrations", "experiments")
PACKAGES = (
    "terrine_protocol",
    "terrine_tables",
    "terrine_client",
    "terrine_models",
    "terrine_server",
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class _WithoutModules(ast.NodeTransformer):
    """Makes `module.name` of a module of ours `name`, and drops imports and docstrings."""

    def __init__(self, modules: set[str]) -> None:
        self._modules = modules

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self._modules:
            return ast.Name(node.attr, node.ctx)
        return node

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant):
            return None
        return self.generic_visit(node)


def _functions(node: ast.AST, within: str = "") -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield within + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{within}{child.name}.")
        elif isinstance(child, ast.If):
            yield from _functions(child, within)


def _codes(sources: dict[str, str], old: dict[str, str]) -> Counter[tuple[str, str]]:
    """Count the pairs of a qualified name and its normalised code.

    `old` gives the earlier names of what was renamed.
    """
    known = {
        path.split("/", 1)[1].removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in sources
    }
    codes: Counter[tuple[str, str]] = Counter()
    for source in sources.values():
        tree = ast.parse(source)
        modules = {
            name.asname or name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for name in node.names
            if f"{node.module}.{name.name}" in known
        }
        renamed = {
            name.asname: name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES)
            for name in node.names
            if name.asname
        }
        for name, function in _functions(tree):
            bare = _WithoutModules(modules).visit(function)
            for node in ast.walk(bare):
                if isinstance(node, ast.Name):
                    node.id = renamed.get(node.id, node.id)
                    node.id = old.get(node.id, node.id)
            bare.name = old.get(bare.name, bare.name)
            codes[old.get(name, name), ast.dump(bare)] += 1
    return codes


def _at(revision: str) -> dict[str, str]:
    command = ["git", "archive", revision, *SOURCES]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        return {
            member.name: (files.extractfile(member) or io.BytesIO()).read().decode()
            for member in files.getmembers()
            if member.name.endswith(".py")
        }


def compare(
    before: dict[str, str], after: dict[str, str], old: dict[str, str]
) -> tuple[int, list[str]]:
    """Return how many functions are the same, and a line for each one that is not."""
    was, now = _codes(before, old), _codes(after, old)
    same = (was & now).total()
    gone, new = was - now, now - was
    lines = []
    for name, code in sorted(new):
        twins = [old for old, other in gone if other == code and old != name]
        if twins:
            lines.append(f"renamed  {twins[0]} -> {name}")
            gone[twins[0], code] -= 1
        elif any(old == name for old, _ in gone):
            lines.append(f"changed  {name}")
        else:
            lines.append(f"new      {name}")
    names = {name for name, _ in new}
    lines += [
        f"gone     {name}" for (name, _), n in sorted(gone.items()) if n and name not in names
    ]
    return same, lines


def main() -> None:
    """Compare the working tree with a revision."""
    after = {str(path): path.read_text() for top in SOURCES for path in Path(top).rglob("*.py")}
    old = {new: was for was, new in (pair.split("=") for pair in sys.argv[2:])}
    same, lines = compare(_at(sys.argv[1]), after, old)
    print(f"{same} functions are as they were, {len(lines)} are not")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

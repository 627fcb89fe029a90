"""Import every module of Terrine, and all that they import when they are used.

That leaves compiled files of what the image needs, and of nothing else. A package that the image
lacks stops the build here, instead of a command later.
"""

import ast
import importlib
import pkgutil
from pathlib import Path

PACKAGES = (
    "terrine_protocol",
    "terrine_tables",
    "terrine_client",
    "terrine_models",
    "terrine_server",
    "terrine_addons",
)
LEFT_OUT = {"ray", "dp_accounting", "matplotlib", "pandas"}
"""What the image may lack: a cluster, others' accountants, students' pictures and data frames."""

modules = {
    module.name
    for package in map(importlib.import_module, PACKAGES)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.name.endswith(".__main__")
}
named = set()
for name in modules:
    tree = ast.parse(Path(importlib.import_module(name).__file__).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            named.add(node.module)
for name in sorted(named):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        if name.partition(".")[0] not in LEFT_OUT:
            raise

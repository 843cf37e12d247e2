"""How the package hangs together: no circles between its files, no two files with one name.

Imports inside functions and under TYPE_CHECKING count: two files that need each other are one idea
in two places, wherever the import is written.
"""

from __future__ import annotations

import ast
from itertools import combinations, takewhile
from pathlib import Path

import networkx

ROOT = Path(__file__).parents[1] / "medclip_debias"
PACKAGE = ROOT.name


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, without the package's own."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The package's modules that one module names in an import, wherever it stands."""
    is_package = path.name == "__init__.py"
    home = [PACKAGE, *name.split(".")] if name else [PACKAGE]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = home[: len(home) - node.level + is_package]
                base = ".".join([*up, *([base] if base else [])])
            # `from package import module` names the module, and `from module import name` does not.
            deeper = [f"{base}.{alias.name}" for alias in node.names]
            targets = [t if t.removeprefix(f"{PACKAGE}.") in known else base for t in deeper]
        else:
            continue
        for target in targets:
            if target == PACKAGE or target.startswith(f"{PACKAGE}."):
                found.add(target.removeprefix(PACKAGE).removeprefix("."))
    return (found & set(known)) - {name, ""}


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules that reach each other."""
    given = networkx.DiGraph((a, b) for a, others in graph.items() for b in others)
    groups = map(frozenset, networkx.strongly_connected_components(given))
    return {group for group in groups if len(group) > 1}


def test_no_two_files_import_each_other_by_any_way():
    known = modules()
    graph = {name: imports(name, path, known) for name, path in known.items()}
    found = sorted(sorted(group) for group in circles(graph))
    assert not found, f"these files import each other: {found}"


def test_a_circle_is_found_wherever_its_import_stands(tmp_path):
    texts = {
        "top": "from medclip_debias.inside import x",
        "inside": "def f():\n    from medclip_debias import typed",
        "typed": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .top import y",
        "alone": "import medclip_debias.top\nimport json",
    }
    known = {name: tmp_path / f"{name}.py" for name in texts}
    for name, text in texts.items():
        known[name].write_text(text)
    graph = {name: imports(name, path, known) for name, path in known.items()}
    assert circles(graph) == {frozenset({"top", "inside", "typed"})}


def alike(first: str, second: str) -> bool:
    """Whether two names are apart by a suffix alone, as prepare and preparation."""
    equal = takewhile(lambda letters: letters[0] == letters[1], zip(first, second, strict=False))
    same = len(list(equal))
    return same >= 4 and same >= min(len(first), len(second)) - 1


def test_no_two_modules_of_a_folder_are_apart_by_a_suffix_alone():
    folders: dict[str, list[str]] = {}
    for name, path in modules().items():
        if path.name == "__init__.py":  # the folder objectives/ beside objective.py is no file
            continue
        folder, _, last = name.rpartition(".")
        folders.setdefault(folder, []).append(last)
    found = {
        (f"{folder}.{a}", f"{folder}.{b}")
        for folder, names in folders.items()
        for a, b in combinations(sorted(names), 2)
        if alike(a, b)
    }
    assert not found, "give one of each pair a name that says what it holds"
    assert alike("probe", "probes")
    assert not alike("labels", "language")

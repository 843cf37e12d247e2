"""What computes the rows and sentences of a set: results of another version are not reused.

Code counts when the result depends on it: the modules of ``data/`` that the way from an opened
source to the set's files imports, and the module of the format that was read. Editing the loader,
the augmentation or the reader of another format throws no preparation away. Settings are not
hashed as code: the recipe of a run and ``meta.json`` hold their values.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from medclip_debias import __version__

ROOT = Path(__file__).parents[2]
"""The package."""

_LIBRARIES = (
    *("numpy", "opencv-python-headless", "pillow", "pydicom", "pysbd"),
    *("pyjpegls", "pylibjpeg", "pylibjpeg-libjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle"),
    "python-gdcm",
)
"""Another version of these may give other pixels or sentences."""

_SCOPE = "medclip_debias.data."
_START = "medclip_debias.data.prepare.collect"
_SAME_RESULT = ("medclip_debias.data.parallel", "medclip_debias.data.sources.registry")
"""Imported on the way without a say in the result: how the work is spread, and which format
reads (the recipe holds its name)."""


@lru_cache(maxsize=8)
def made_by(reader: str) -> dict[str, str]:
    """Return the versions of what a set depends on.

    Args:
        reader: name of the module that reads the source.
    """
    versions = {"medclip-debias": __version__, "code": code_hash(reader)}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # an optional decoder, or opencv under another name
            versions[name] = "none"
    return versions


def code_hash(reader: str, root: Path | None = None) -> str:
    """Return 16 hex digits naming the code that a set depends on.

    Args:
        reader: name of the module that reads the source.
        root: folder of the package; where it is loaded from by default.
    """
    digest = hashlib.sha256()
    for name, path in sorted(code_files(reader, root or ROOT).items()):
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def code_files(reader: str, root: Path = ROOT) -> dict[str, Path]:
    """Return the modules' files, and their packages' YAML, that a set depends on, by name."""
    found: dict[str, Path] = {}
    waiting = [_START, reader]
    while waiting:
        name = waiting.pop()
        path = _file(name, root)
        if path is None or name in found or name in _SAME_RESULT:
            continue
        found[name] = path
        waiting += _imports(path, root)
    for name, path in list(found.items()):
        if path.name == "__init__.py":  # the data of a package, such as the words of languages
            found |= {f"{name}/{data.name}": data for data in sorted(path.parent.glob("*.yaml"))}
    return found


def _file(name: str, root: Path) -> Path | None:
    """Return the file of a module; that of one outside the package where it is loaded from."""
    if not f"{name}.".startswith(f"{root.name}."):
        file = getattr(sys.modules.get(name), "__file__", None)
        return Path(file) if file else None
    place = root.joinpath(*name.split(".")[1:])
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def _imports(path: Path, root: Path) -> Iterator[str]:
    """Yield what a file imports of ``data/``, also inside functions, but not for types alone."""
    for module, names in _import_statements(path.read_bytes()):
        inner = [f"{module}.{name}" for name in names]
        modules = [name for name in inner if _file(name, root) is not None]
        yield from modules
        if len(modules) < len(names) or not names:
            yield module


@lru_cache(maxsize=512)
def _import_statements(source: bytes) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Modules of ``data/`` that a source imports, each with the names that it takes from there."""
    found: list[tuple[str, tuple[str, ...]]] = []
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            skipped.update(node.body)
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found += [(name.name, ()) for name in node.names if name.name.startswith(_SCOPE)]
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(_SCOPE):
            assert node.module is not None
            found.append((node.module, tuple(name.name for name in node.names)))
    return tuple(found)

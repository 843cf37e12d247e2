"""Files that are either whole or absent: atomic writes, and hashes that name content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it takes ``path``'s place.

    The content reaches the disk before the rename, so a crash leaves the old file or the new
    one, never a half. On an exception the temporary file is removed and ``path`` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success it takes ``path``'s place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o777 & ~_umask())
        if path.exists():
            retired = temporary.with_name(temporary.name + ".old")
            path.replace(retired)
            temporary.replace(path)
            shutil.rmtree(retired)
        else:
            temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` atomically as indented JSON; NaN is refused, not written."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def file_hash(*paths: Path, progress: Callable[[int], None] | None = None) -> str:
    """Return 16 hex digits of the SHA-256 over the files' bytes, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
                if progress:
                    progress(len(block))
    return digest.hexdigest()[:16]


def code_hash() -> str:
    """16 hex digits naming the package's own files: code, prompts, templates; their names too."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    kinds = {".py", ".yaml", ".j2", ".css"}
    for path in sorted(p for p in root.rglob("*") if p.suffix in kinds and p.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

"""Files that are either whole or absent, and guarded reading of files that others wrote.

Writing is atomic. Reading (`open_guarded`, `read_text`, `read_json`) takes regular files up to a
size alone: a pipe or a device would never end, and a file of a few blocks can claim 8 GiB.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal

from medclip_debias.errors import UserError


@contextmanager
def atomic_file(path: Path, *, private: bool = False, first: bool = False) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it takes ``path``'s place.

    The content reaches the disk before the rename: a crash leaves the old file or the new one. With
    ``first`` a file that is there, or that another process writes first, stays as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _clean_once(path.parent)
    # A long name is cut, for with what is added it must remain below 256 bytes.
    stem = path.name.encode()[:150].decode(errors="ignore")
    handle, name = tempfile.mkstemp(
        prefix=temporary_prefix(stem), suffix=f".part{path.suffix[:20]}", dir=path.parent
    )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(0o600 if private else 0o666 & ~_umask())
        if first:
            _place_first(temporary, path)
        else:
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _place_first(temporary: Path, path: Path) -> None:
    """Give a finished file its name, unless the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # a disk without hard links
        if not path.exists():
            temporary.replace(path)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success it takes ``path``'s place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _clean_once(path.parent)
    temporary = Path(
        tempfile.mkdtemp(prefix=temporary_prefix(path.name), suffix=".part", dir=path.parent)
    )
    try:
        yield temporary
        _give_rights(temporary)
        exchange(temporary, path, temporary.with_name(temporary.name + ".old"))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_out(out: Path, mark: str = "*", what: str = "") -> None:
    """Refuse a folder to write, before the work, that would end in an error or cost other files.

    Args:
        out: a folder that is made, or written into.
        mark: pattern of a file that an earlier ``what`` holds, which alone may be replaced; by
            default what is there stays, and does not matter.

    Raises:
        UserError: a file is in its place, it cannot be written to, or it holds something else.
    """
    place = out
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise UserError(f"{place}: is a file; give a folder for what is written.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"{place}: cannot be written to; give another folder.")
    if place == out and any(out.iterdir()) and not any(out.glob(mark)):
        raise UserError(f"{out}: is not empty and holds no {what}; give another folder for it.")


def exchange(new: Path, target: Path, retired: Path) -> None:
    """Put the folder ``new`` in the place of ``target`` by renames; `take_back` mends a kill."""
    shutil.rmtree(retired, ignore_errors=True)
    if target.exists():
        target.replace(retired)
    new.replace(target)
    if retired.is_dir():
        shutil.rmtree(retired)


def take_back(target: Path, retired: Path) -> None:
    """Finish what an `exchange` left that was killed: remove ``retired``, or put it back."""
    if retired.is_dir():
        if target.exists():
            shutil.rmtree(retired)
        else:
            retired.replace(target)


def _give_rights(folder: Path) -> None:
    """Let the umask decide who may read: safetensors, for one, makes its files private."""
    mask = _umask()
    for place, _, files in os.walk(folder):
        for name in files:
            file = Path(place, name)
            if not file.is_symlink():
                file.chmod(0o666 & ~mask)
        # In a folder that a group shares, what is in it belongs to the group.
        shared = Path(place).stat().st_mode & stat.S_ISGID
        Path(place).chmod((0o777 & ~mask) | shared)


# ------------------------------------------------------------------- leftovers of the killed

_PART = re.compile(
    r"\.(?P<name>.+)\.(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-(?P<started>\d+)-[a-z0-9_]{8}"
    r"\.part(?P<rest>\.[^.]*)?"
)
_FORGOTTEN = 24 * 3600.0
"""Seconds without a change after which the work of another machine's process counts as left."""

_cleaned: set[tuple[int, Path]] = set()


def remove_leftovers(folder: Path) -> int:
    """Remove what writers that were killed left in ``folder``; how many files and folders.

    Names of `atomic_file` and `atomic_folder` alone are looked at. What a living process of this
    machine writes stays, and what another machine writes, until a day has passed without a change.
    """
    count = 0
    with suppress(OSError), os.scandir(folder) as entries:
        leftovers = [(entry, match) for entry in entries if (match := _PART.fullmatch(entry.name))]
        for entry, match in sorted(leftovers, key=lambda pair: pair[0].name):
            state = _state_of(match["machine"], int(match["pid"]), int(match["started"]))
            path = Path(entry.path)
            if entry.is_symlink() or state == "alive":
                continue
            with suppress(OSError):  # another user's, or another process removed it just now
                if state == "elsewhere" and time.time() - _changed(path) < _FORGOTTEN:
                    continue
                target = path.with_name(match["name"])
                if not entry.is_dir(follow_symlinks=False):
                    path.unlink()
                elif match["rest"] == ".old":
                    take_back(target, path)
                else:
                    shutil.rmtree(path)
                count += 1
    return count


def _changed(path: Path) -> float:
    """When a file, or anything in a folder, was changed last."""
    return max(place.lstat().st_mtime for place in (path, *path.rglob("*")))


def _clean_once(folder: Path) -> None:
    """`remove_leftovers`, the first time that this process writes into ``folder``."""
    key = os.getpid(), folder.absolute()
    if key not in _cleaned:
        _cleaned.add(key)
        remove_leftovers(folder)


def temporary_prefix(name: str) -> str:
    """Beginning of a temporary name that `remove_leftovers` knows; it must end in ``.part``."""
    return f".{name}.{_machine()}-{os.getpid()}-{_started(os.getpid())}-"


@cache
def _machine() -> str:
    """8 hex digits for the host, its last start, and its process numbers (a container has its own).

    The number of a process alone is not enough: on a shared disk another machine has the same.
    """
    words = [socket.gethostname()]
    with suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        words.append(str(Path("/proc/self/ns/pid").readlink()))
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


@lru_cache(maxsize=4)
def _started(pid: int) -> int:
    """When a process began, in seconds; its number is given again once it is gone."""
    import psutil

    return int(psutil.Process(pid).create_time())


def _state_of(machine: str, pid: int, started: int) -> Literal["alive", "gone", "elsewhere"]:
    """Whether a process runs; ``elsewhere`` where this machine cannot know."""
    import psutil

    if machine != _machine():
        return "elsewhere"
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return "gone"
        # The kernel's clock, by which processes begin, is adjusted now and then.
        return "alive" if abs(process.create_time() - started) < 5 else "gone"
    except psutil.NoSuchProcess:
        return "gone"
    except psutil.AccessDenied:
        return "alive"


def is_there(word: str) -> bool:
    """Whether a word of a command is a path that exists; one too long for any name is none.

    >>> is_there("."), is_there("x" * 9999)
    (True, False)
    """
    return os.path.exists(word)  # noqa: PTH110  # Path.exists raises there


def write_text(path: Path, text: str) -> None:
    """Write ``text`` atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` atomically as indented JSON; NaN is refused, not written."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


# --------------------------------------------------------------------------- guarded reading

MAX_JSON = 1 << 30
"""Bytes that a JSON file may have where its reader sets no limit."""
_KINDS = {stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
_KINDS |= {stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


def open_guarded(
    path: Path, remedy: str, *, limit: int | None = None, folder: Path | None = None
) -> BinaryIO:
    """Open a file that somebody else may have written; use it in a ``with``.

    Args:
        path: of a regular file, or of a link to one.
        remedy: what to do about a file that is missing or refused; ends the sentence.
        limit: bytes that the file may have, holes included.
        folder: what came from outside and holds the file, such as a model or a results folder:
            links must not lead out of it. In the cache of huggingface_hub they may lead to the
            blobs of the same repository.

    Raises:
        UserError: the file is missing, cannot be read, is a folder, pipe, socket or device, is
            larger than ``limit``, or is a link out of ``folder``.
    """
    try:
        target = _target(path, remedy, folder)
        _refuse(target.stat(), path, remedy, limit)
        # Nothing that took the file's place since then is waited for or followed.
        handle = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        stream = os.fdopen(handle, "rb")
        try:
            _refuse(os.fstat(handle), path, remedy, limit)
        except UserError:
            stream.close()
            raise
        return stream
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; {remedy}.") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise UserError(f"{path}: cannot be read ({type(error).__name__}); {remedy}.") from error


def check_guarded(
    path: Path, remedy: str, *, limit: int | None = None, folder: Path | None = None
) -> None:
    """Refuse what `open_guarded` refuses, for a library that opens the path itself."""
    open_guarded(path, remedy, limit=limit, folder=folder).close()


def _target(path: Path, remedy: str, folder: Path | None) -> Path:
    """The file behind ``path``'s links, inside ``folder``."""
    target = Path(os.path.realpath(path, strict=True))
    if folder is None:
        return target
    root = Path(os.path.realpath(folder, strict=True))
    cache = root.parent.parent  # models--OWNER--NAME / snapshots / COMMIT
    if root.parent.name == "snapshots" and cache.name.startswith(("models--", "datasets--")):
        root = cache
    if not target.is_relative_to(root):
        raise UserError(f"{path}: is a link out of its folder, which is not followed; {remedy}.")
    return target


def _refuse(status: os.stat_result, path: Path, remedy: str, limit: int | None) -> None:
    """Refuse what is not a regular file, or is too large."""
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "special file")
        raise UserError(f"{path}: is a {kind}, not a regular file; {remedy}.")
    if limit is not None and status.st_size > limit:
        raise UserError(f"{path}: is larger than {_size(limit)}; {remedy}.")


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count} bytes"


def read_bytes(path: Path, remedy: str, *, limit: int, folder: Path | None = None) -> bytes:
    """Everything in a file of at most ``limit`` bytes; see `open_guarded`."""
    with open_guarded(path, remedy, limit=limit, folder=folder) as stream:
        try:
            content = stream.read(limit + 1)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read ({type(error).__name__}); {remedy}."
            ) from error
    if len(content) > limit:  # files of the system say that they have 0 bytes, some files grow
        raise UserError(f"{path}: is larger than {_size(limit)}; {remedy}.")
    return content


def read_text(
    path: Path, remedy: str, *, limit: int, folder: Path | None = None, encoding: str = "utf-8"
) -> str:
    """The text of a file of at most ``limit`` bytes; refused as by `open_guarded`."""
    content = read_bytes(path, remedy, limit=limit, folder=folder)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not text in {encoding.upper()}; {remedy}.") from None


def read_json(
    path: Path,
    remedy: str,
    *,
    keys: Sequence[str] = (),
    limit: int = MAX_JSON,
    folder: Path | None = None,
    encoding: str = "utf-8",
) -> dict[str, Any]:
    """Read a JSON object that holds ``keys``; refused as by `open_guarded`, or damaged."""
    content = read_json_value(path, remedy, limit=limit, folder=folder, encoding=encoding)
    if not isinstance(content, dict):
        raise UserError(f"{path}: is not a JSON object; {remedy}.")
    lacking = next((key for key in keys if key not in content), None)
    if lacking is not None:
        raise UserError(f"{path}: lacks the key '{lacking}'; {remedy}.")
    return content


def read_json_value(
    path: Path,
    remedy: str,
    *,
    limit: int = MAX_JSON,
    folder: Path | None = None,
    encoding: str = "utf-8",
) -> Any:
    """Read JSON of any kind, such as a list; see `read_json`."""
    content = read_bytes(path, remedy, limit=limit, folder=folder)
    try:
        return json.loads(content.decode(encoding))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path}: cannot be read as JSON ({type(error).__name__}); {remedy}."
        ) from error


def read_json_or_none(path: Path, *, limit: int = MAX_JSON, folder: Path | None = None) -> Any:
    """Read JSON of any kind; None where it is missing, refused (`open_guarded`) or damaged."""
    try:
        return json_or_none(read_bytes(path, "", limit=limit, folder=folder))
    except UserError:
        return None


def json_or_none(text: str | bytes) -> Any:
    """Parse JSON of any kind, such as one line of a journal; None where it is damaged."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


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


@cache
def code_hash() -> str:
    """16 hex digits naming the package's own files: code, prompts, templates; their names too."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    kinds = {".py", ".yaml", ".j2", ".css"}
    for path in sorted(p for p in root.rglob("*") if p.suffix in kinds and p.is_file()):
        if path.is_relative_to(root / "configs"):  # of a wheel; a checkout has them beside it
            continue
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _umask() -> int:
    try:  # asking by setting would let other threads write without one for a moment
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    mask = os.umask(0)
    os.umask(mask)
    return mask

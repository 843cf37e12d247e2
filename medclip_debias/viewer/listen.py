"""The place where the server listens: an address with a port, or a socket in the file system."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from medclip_debias.errors import UserError


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address of this machine; port 0 takes a free one."""
    where = f"{host}:{port}"
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UserError(f"{where}: is no address of this machine; correct --host.") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen()
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            raise UserError(
                f"{where}: cannot be listened on ({why}); give another --port or --host."
            ) from error
        yield listener


@contextmanager
def listening_at(path: Path) -> Iterator[socket.socket]:
    """Listen on a private unix socket; one left by a killed server is replaced."""
    path = Path(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        with _locked(path.parent):
            _clear(path)
            before = os.umask(0o177)  # it is private from its first moment on
            try:
                listener.bind(str(path))
                listener.listen()
            except OSError as error:
                raise UserError(
                    f"{path}: cannot be listened on ({error.strerror or error}); give another"
                    " --socket, of at most 100 characters, in a folder on this machine's own disk."
                ) from error
            finally:
                os.umask(before)
            ours = path.lstat()
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):  # a successor's is left alone
                if os.path.samestat(path.lstat(), ours):
                    path.unlink()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let no second server look at the same folder meanwhile, as it would remove the first's."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(
            f"{folder}: there is no such folder for --socket; make it first."
        ) from error
    try:
        with contextlib.suppress(OSError):  # some network disks have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise UserError(f"{path}: is there already and is no socket; give another --socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return path.unlink(missing_ok=True)
        except FileNotFoundError:
            return None
        except OSError:
            pass  # it cannot be known, so it is left
    raise UserError(f"{path}: another server listens there; end it, or give another --socket.")

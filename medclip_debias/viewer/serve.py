"""Serve the page at one place, with nothing leaving the machine and nothing left behind."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from medclip_debias.errors import UserError, need_packages
from medclip_debias.files import remove_leftovers, temporary_prefix

if TYPE_CHECKING:
    import uvicorn

    from medclip_debias.viewer.answers import Answers
    from medclip_debias.viewer.guard import Guard

LOOPBACK = "127.0.0.1"
PORT = 7860
TOKEN_VARIABLE = "MEDCLIP_DEBIAS_VIEWER_TOKEN"
SHORTEST_TOKEN = 20
CLOSING = 2  # seconds that open connections get at the end
MOST_CONNECTIONS = 512

# They hold everything, and reach nobody from outside by themselves.
_EVERYWHERE = ("0.0.0.0", "::", "")


def serve(
    answers: Answers,
    place: tuple[str, int] | Path = (LOOPBACK, PORT),
    token: str | None = None,
    *,
    show_token: bool = True,
    allowed: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Serve at host and port, or at the path of a unix socket, until a signal ends it."""
    at = listening_at(place) if isinstance(place, Path) else listening(*place)
    names = list(allowed)
    if not isinstance(place, Path) and place[0] not in _EVERYWHERE:
        names.append(place[0])
    with at as listener, _workplace() as work:
        from medclip_debias.viewer.app import Page
        from medclip_debias.viewer.guard import Guard

        server = server_of(Guard(Page(answers, work / "uploads").app, token, names))
        for line in _announced(place, listener, token, show_token, allowed):
            say(line)
        with _ended_by_signals(server), _quiet():
            server.run(sockets=[listener])


def server_of(app: Guard) -> uvicorn.Server:
    """The page behind its guard as a server that does not listen yet."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            limit_concurrency=MOST_CONNECTIONS,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=CLOSING,
        )
    )


def _announced(
    place: tuple[str, int] | Path,
    listener: socket.socket,
    token: str | None,
    show_token: bool,
    allowed: Sequence[str],
) -> Iterator[str]:
    """The address to open, and what to know of it."""
    from medclip_debias.viewer.guard import is_loopback

    query = "/" if token is None else f"/?token={token if show_token else 'TOKEN'}"
    if isinstance(place, Path):
        yield f"unix socket {place}"
        yield f"ssh -L {PORT}:{place.resolve()} HOST, then open http://{LOOPBACK}:{PORT}{query}"
        reached = "Everyone who can open the socket"
    else:
        number, here = listener.getsockname()[1], is_loopback(place[0])
        host = LOOPBACK if place[0] in _EVERYWHERE else place[0]
        yield f"http://{f'[{host}]' if ':' in host else host}:{number}{query}"
        reached = f"Everyone {'on' if here else 'who reaches'} this machine"
        if not here:
            served = ", ".join([*allowed, "localhost", LOOPBACK])
            yield (
                f"Listening on {place[0]}: other machines can reach port {number}. The traffic is"
                f" not encrypted. Served under these names: {served} (--allow-host adds one)."
            )
    if token is None:
        yield f"Warning: there is no token. {reached} can use this page."
    elif not show_token:
        yield f"TOKEN stands for the token of --token-file or {TOKEN_VARIABLE}."


def read_token(file: Path | None) -> str | None:
    """The token of a file, else that of the environment, else None."""
    token, source = os.environ.get(TOKEN_VARIABLE, "").strip(), f"${TOKEN_VARIABLE}"
    if file is not None:
        try:
            token, source = Path(file).read_text(encoding="utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: the token cannot be read; check --token-file.") from error
    elif not token:
        return None
    if not re.fullmatch(rf"[A-Za-z0-9._~-]{{{SHORTEST_TOKEN},}}", token):
        raise UserError(
            f"{source}: a token has at least {SHORTEST_TOKEN} characters, all of them letters,"
            " digits or one of . _ ~ -; write one with: openssl rand -hex 32"
        )
    return token


def check_installed() -> None:
    """Refuse to start without the server."""
    need_packages("The viewer's pages", "viewer", "uvicorn", "starlette", "python_multipart")


@contextmanager
def _workplace() -> Iterator[Path]:
    """A private temporary folder for uploads, and for whatever else wants a temporary file."""
    usual = tempfile.tempdir
    remove_leftovers(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(
        prefix=temporary_prefix("medclip-debias-viewer"), suffix=".part", ignore_cleanup_errors=True
    ) as name:
        tempfile.tempdir = name
        try:
            yield Path(name)
        finally:
            tempfile.tempdir = usual


@contextmanager
def _quiet() -> Iterator[None]:
    """Print nothing of what happens: tracebacks of the web libraries quote what was sent."""
    if os.environ.get("MEDCLIP_DEBIAS_DEBUG"):
        yield
        return
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        yield


@contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end the server, so that its folder is removed."""
    kinds: tuple[signal.Signals, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    if threading.current_thread() is not threading.main_thread():
        kinds = ()  # it has none

    def stop(*_: object) -> None:
        server.should_exit = True

    before = {kind: signal.signal(kind, stop) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


# ------------------------------------------------------------------------------ where it listens


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address of this machine; port 0 takes a free one."""
    where = f"{host}:{port}"
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UserError(f"{where}: is not an address of this machine; correct --host.") from error
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
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(
            f"{path.parent}: there is no such folder for --socket; make it first."
        ) from error
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            # No second server looks at the folder meanwhile, as it would remove the first's socket.
            with suppress(OSError):  # some network disks have no locks
                fcntl.flock(folder, fcntl.LOCK_EX)
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
        finally:
            os.close(folder)
        try:
            yield listener
        finally:
            with suppress(OSError):  # a successor's is left alone
                if os.path.samestat(path.lstat(), ours):
                    path.unlink()


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise UserError(f"{path}: already exists and is not a socket; give another --socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return path.unlink(missing_ok=True)
        except OSError:
            pass  # it cannot be known, so it is left
    raise UserError(f"{path}: another server listens there; end it, or give another --socket.")

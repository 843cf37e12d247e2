"""Serve the page on one address, with nothing leaving the machine and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from medclip_debias.errors import UserError

if TYPE_CHECKING:
    from gradio import Blocks

    from medclip_debias.viewer.answers import Answers

LOOPBACK = "127.0.0.1"
MAX_UPLOAD = 1 << 30
CLOSING = 2  # seconds that open connections get at the end

# The browser itself refuses whatever would go to another machine: fonts, scripts, pictures.
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' blob:;"
    " style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'self';"
    " form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}

# Of gradio's own variables those that would let something out or in.
_OFF = {
    "GRADIO_ANALYTICS_ENABLED": "False",
    "GRADIO_SHARE": "False",
    "GRADIO_ALLOWED_PATHS": "",
    "GRADIO_MCP_SERVER": "False",
    "GRADIO_RUN_HISTORY": "False",
    "GRADIO_SSR_MODE": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]


def serve(
    answers: Answers, host: str = LOOPBACK, port: int = 7860, say: Callable[[str], None] = print
) -> None:
    """Serve until the process is told to stop (Ctrl-C, SIGTERM, SIGHUP).

    Everything that the page keeps on the disk lies in one temporary folder that is gone when this
    returns.

    Args:
        answers: what the page asks.
        host: address to listen on; the default is reached from this machine alone.
        port: 0 takes a free one.
        say: told the address, and that others can reach it where they can.

    Raises:
        UserError: gradio is not installed, or the address cannot be listened on.
    """
    check_installed()
    with _listening(host, port) as listener, _workplace() as work:
        import uvicorn

        app = application(answers, work, host)
        config = uvicorn.Config(
            app, log_config=None, access_log=False, timeout_graceful_shutdown=CLOSING
        )
        server = uvicorn.Server(config)
        place, number = listener.getsockname()[:2]
        shown = f"[{place}]" if ":" in place else place
        say(f"http://{shown}:{number}")
        if not is_loopback(host):
            say(f"Everyone who reaches this machine at port {number} can use this page.")
        with _ended_by_signals(server), _quiet():
            server.run(sockets=[listener])


def check_installed() -> None:
    """Refuse to go on without gradio, without taking the seconds that its import takes.

    Raises:
        UserError: it is not installed.
    """
    from importlib.util import find_spec

    try:
        there = find_spec("gradio") is not None
    except ValueError:
        there = False
    if not there:
        raise UserError(
            "the viewer needs gradio, which is not installed; run pip install"
            " 'medclip-debias[viewer]'."
        )


def application(answers: Answers, work: Path, host: str = LOOPBACK) -> Any:
    """The page as an ASGI application.

    Args:
        answers: what the page asks.
        work: folder for uploads and pictures.
        host: address that it will be served on.
    """
    os.environ.update(_OFF)
    import gradio
    from fastapi import FastAPI

    from medclip_debias.viewer.page import STYLE, TITLE, build

    page: Blocks = build(answers, work)
    system = ("system-ui", "-apple-system", "Segoe UI", "sans-serif")
    outer = gradio.mount_gradio_app(
        FastAPI(title=TITLE, docs_url=None, redoc_url=None, openapi_url=None),
        page,
        path="/",
        server_name=host,
        footer_links=[],
        run_history=False,
        show_error=False,
        max_file_size=MAX_UPLOAD,
        allowed_paths=[],
        ssr_mode=False,
        enable_monitoring=False,
        pwa=False,
        mcp_server=False,
        theme=gradio.themes.Default(font=system, font_mono=("ui-monospace", "monospace")),
        css=STYLE,
    )
    return Guard(outer, check_host=is_loopback(host))


class Guard:
    """Headers on every answer, and on loopback a look at the name that the browser asked for.

    A page of another site can point its own name at 127.0.0.1 and so read a local server (DNS
    rebinding). A request under a name that is not this machine's is refused.

    Args:
        app: the ASGI application behind.
        check_host: refuse names that are not loopback.
    """

    def __init__(self, app: Any, *, check_host: bool) -> None:
        self._app = app
        self._check_host = check_host

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer one connection."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan" or not self._check_host or _asked_here(scope):
                await self._app(scope, receive, send)
            return
        if self._check_host and not _asked_here(scope):
            body = b"This name is not served here.\n"
            await send({"type": "http.response.start", "status": 421, "headers": []})
            await send({"type": "http.response.body", "body": body})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0].decode() not in HEADERS]
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*kept, *ours]}
            await send(message)

        await self._app(scope, receive, guarded)


def _asked_here(scope: Scope) -> bool:
    names = [value.decode("latin-1") for key, value in scope["headers"] if key == b"host"]
    return len(names) == 1 and is_loopback(_without_port(names[0]))


def _without_port(name: str) -> str:
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine as seen from itself alone.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "a.org")]
    [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    where = f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
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
def _workplace() -> Iterator[Path]:
    """A private temporary folder, which gradio uses for all that it keeps on the disk.

    It must be there before gradio is imported, which makes a folder in its usual place at once.
    """
    before = os.environ.get("GRADIO_TEMP_DIR")
    with tempfile.TemporaryDirectory(
        prefix="medclip-debias-viewer-", ignore_cleanup_errors=True
    ) as name:
        os.environ["GRADIO_TEMP_DIR"] = name
        try:
            yield Path(name)
        finally:
            os.environ.pop("GRADIO_TEMP_DIR")
            if before is not None:
                os.environ["GRADIO_TEMP_DIR"] = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Print nothing of what is going on: tracebacks of the web libraries quote what was sent.

    ``MEDCLIP_DEBIAS_DEBUG=1`` prints all of it.
    """
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
def _ended_by_signals(server: Any) -> Iterator[None]:
    """Let signals end the server, and not the process before its folder is removed.

    uvicorn stops at SIGINT and SIGTERM and then raises them once more with the handlers that it
    found; the handler here makes that the regular end. A closed terminal (SIGHUP) ends it too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        server.should_exit = True

    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, stop) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)

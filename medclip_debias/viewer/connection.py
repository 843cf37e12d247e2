"""One connection to the viewer, which is given up when its client stops reading."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

UNREAD = 60.0  # seconds that a part of an answer may wait for a client to take it


class Connection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it; a client that stops reading is given up after `UNREAD`."""

    _given_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Be told of every byte that is not taken at once."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        """Bytes wait for the client."""
        super().pause_writing()
        self._given_up = self.loop.call_later(UNREAD, self.transport.abort)

    def resume_writing(self) -> None:
        """It has taken them all."""
        super().resume_writing()
        if self._given_up is not None:
            self._given_up.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing waits any more."""
        if self._given_up is not None:
            self._given_up.cancel()
        super().connection_lost(exc)

"""Clients that ask and do not read: their answers are given up, and others are answered."""

from __future__ import annotations

import socket
import time

import pytest

from tests.viewer.conftest import Client, served

pytest.importorskip("uvicorn")
SIDE = 6000  # 36 MB of pixels, more than the buffers of a connection take


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A radiograph of `SIDE` by `SIDE` pixels, as bytes of a PNG."""
    import numpy as np
    from PIL import Image

    path = tmp_path_factory.mktemp("large") / "large.png"
    Image.fromarray(np.add.outer(np.arange(SIDE), np.arange(SIDE)).astype(np.uint8)).save(path)
    return path.read_bytes()


@pytest.fixture
def impatient(answers, tmp_path, monkeypatch):
    """The page, where two unread images are the most, and their clients get a second."""
    from medclip_debias.viewer import guard

    monkeypatch.setattr(guard, "UNREAD", 1.0)
    monkeypatch.setattr(guard, "MOST_UNREAD", int(2.5 * SIDE * SIDE))
    with served(answers, tmp_path / "work", token=None) as site:
        yield site


def asking(site, client, image, buffer=4096):
    """A connection that asks for the pixels of an image and does not read them."""
    host, port = site.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect((host, int(port)))
    connection.sendall(
        f"GET /api/pixels/{client.session}/{image} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    )
    return connection


def until(true, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_answers_that_nobody_reads_are_counted_in_bytes_and_given_up(impatient, large):
    clients = [Client(impatient.url, f"session{number}" * 4) for number in range(3)]
    images = [client.upload("large.png", large).json()["image"] for client in clients]
    unread = []
    for client, image in zip(clients[:2], images, strict=False):
        unread.append(asking(impatient, client, image))
        until(lambda: impatient.guard.unread >= len(unread) * SIDE * SIDE)
    address = f"/api/pixels/{clients[2].session}/{images[2]}"
    refused = clients[2].web.get(address)
    assert (refused.status_code, impatient.guard.unread) == (503, 2 * SIDE * SIDE)
    assert "open the radiograph again" in refused.text
    assert clients[2].web.get("/api/about").status_code == 200  # what is small is answered still
    # After the time the connections end, though their clients never closed them.
    until(lambda: impatient.guard.unread == 0)
    for connection in unread:
        received = 0
        try:
            while part := connection.recv(1 << 20):
                received += len(part)
        except ConnectionResetError:
            pass
        assert received < SIDE * SIDE
        connection.close()
    again = clients[2].upload("large.png", large).json()["image"]
    pixels = clients[2].web.get(f"/api/pixels/{clients[2].session}/{again}")
    assert len(pixels.content) == SIDE * SIDE


def test_a_client_that_reads_slowly_gets_all_of_it(impatient, large):
    client = Client(impatient.url)
    image = client.upload("large.png", large).json()["image"]
    connection = asking(impatient, client, image, buffer=1 << 20)
    began, received = time.monotonic(), 0
    while received < SIDE * SIDE:  # for longer than a client may be silent
        part = connection.recv(500_000)
        assert part
        received += len(part)
        time.sleep(0.02)
    assert time.monotonic() - began > 1.2
    connection.close()

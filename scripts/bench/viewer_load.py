"""Load the viewer: clients that open radiographs and ask, all at once; then what it took.

    python scripts/bench/viewer_load.py MODEL --images FOLDER

Each client does what a page does: it holds its connection, opens an image of the folder, fetches
its pixels, looks for sentences one after the other, exports JSON, and begins again. Printed: the
errors, the 50th and 95th percentile of the seconds of each kind of request, the memory of the
server at the start and at the end, and the seconds from the address to a page that can be used.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

SENTENCES = ("Left pleural effusion.", "No pneumothorax.", "Cardiomegaly.", "Right lower opacity.")
SETTLED = 5  # seconds until the first reading of the memory counts


class Client:
    """One page: a session with its connection."""

    def __init__(self, address: str, number: int, took: dict[str, list[float]]) -> None:
        url = httpx.URL(address)
        origin = f"http://{url.netloc.decode()}"
        self.web = httpx.Client(base_url=origin, headers={"origin": origin}, timeout=60)
        self.web.get(url.raw_path.decode())
        self.session = f"{number:032x}"
        self.took = took

    def ask(self, what: str, **content: object) -> Any:
        """One request, timed."""
        body = {"session": self.session} | content
        return self._timed(what, lambda: self.web.post(f"/api/{what}", json=body))

    def pixels(self, image: str) -> Any:
        """The pixels of an image, timed."""
        return self._timed("pixels", lambda: self.web.get(f"/api/pixels/{self.session}/{image}"))

    def _timed(self, what: str, send: Callable[[], httpx.Response]) -> httpx.Response:
        began = time.perf_counter()
        answer = send()
        self.took[what].append(time.perf_counter() - began)
        answer.raise_for_status()
        return answer


def work(client: Client, names: list[str], until: float, pause: float, wrong: list[str]) -> None:
    """What one reader does until the time is over."""
    try:
        with client.web.stream("GET", f"/api/alive/{client.session}"):
            turn = int(client.session, 16)
            while time.monotonic() < until:
                opened = client.ask("choose", name=names[turn % len(names)]).json()
                client.pixels(opened["image"])
                for sentence in SENTENCES:
                    time.sleep(pause)
                    client.ask("look", image=opened["image"], sentence=sentence)
                client.ask("export", image=opened["image"], sentences=SENTENCES[:1], kind="json")
                turn += 1
    except Exception as error:
        wrong.append(f"{type(error).__name__}: {error}")


def first_paint(address: str) -> dict[str, float]:
    """Seconds to the first paint and to a page that can be used, in the system's Chromium."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        began = time.perf_counter()
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        ready = time.perf_counter() - began
        script = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
        painted = float(page.evaluate(script))
        browser.close()
    return {"first paint, s": painted, "usable, s": ready}


def main() -> None:
    """Start a viewer, load it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two sentences")
    options = parser.parse_args()
    words = [sys.executable, "-u", "-m", "medclip_debias", "view", str(options.model)]
    words += ["--images", str(options.images), "--port", "0", "--device", "cpu"]
    with tempfile.TemporaryFile("w+") as reported:
        began = time.perf_counter()
        server = subprocess.Popen(words, stdout=reported, stderr=subprocess.STDOUT, text=True)
        try:
            address = ""
            while not address and server.poll() is None:
                time.sleep(0.1)
                reported.seek(0)
                found = re.search(r"http://\S+", reported.read())
                address = found[0] if found else ""
            if not address:
                reported.seek(0)
                sys.exit(reported.read())
            print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            print(f"| from the command to the address, s | {time.perf_counter() - began:.1f} |")
            _measure(address, psutil.Process(server.pid), options)
        finally:
            server.terminate()
            server.wait()


def _measure(address: str, server: psutil.Process, options: argparse.Namespace) -> None:
    time.sleep(1)
    try:
        for name, value in first_paint(address).items():
            print(f"| {name} | {value:.2f} |")
    except ImportError:
        print("| first paint, s | not measured: playwright is not installed |")
    took: dict[str, list[float]] = defaultdict(list)
    wrong: list[str] = []
    until = time.monotonic() + options.seconds
    clients = [Client(address, number, took) for number in range(options.clients)]
    names = clients[0].web.get("/api/images/0").json()["names"]
    threads = [
        threading.Thread(target=work, args=(client, names, until, options.pause, wrong))
        for client in clients
    ]
    for thread in threads:
        thread.start()
    memory = []
    while any(thread.is_alive() for thread in threads):
        time.sleep(SETTLED)
        memory.append(server.memory_info().rss / 2**20)
    print(f"load average {os.getloadavg()[0]:.1f}; {options.clients} clients")
    print("\n| request | count | median, s | 95th percentile, s |\n| --- | ---: | ---: | ---: |")
    every = [value for values in took.values() for value in values]
    for name, values in [*took.items(), ("all", every)]:
        median, high = np.percentile(values, (50, 95))
        print(f"| {name} | {len(values)} | {median:.2f} | {high:.2f} |")
    quarter = max(1, len(memory) // 4)
    start, end = np.mean(memory[:quarter]), np.mean(memory[-quarter:])
    print(f"\nerrors: {len(wrong)} {wrong[:3]}")
    print(f"memory, MiB: {start:.0f} in the first quarter, {end:.0f} in the last")


if __name__ == "__main__":
    main()

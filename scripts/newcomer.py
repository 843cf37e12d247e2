"""Follow README.md and docs/start.md to the letter, as somebody who has just cloned.

Copies the files of this checkout into a new folder and gives a shell that knows nothing else every
command of both pages in their order, and Python every example. What needs data that nobody may
hand out is left aside, counted and said why. `make demo` is given once: the second page finds it
done. `--quick` takes a minute and no network: what is installed is the wheel, beside the packages
of the running Python, the demo is `make demo DEMO=--quick`, the phantom's settings train a few
steps, and what comes after the demo is done by forks of one process that has imported
(preloaded.py), but for `--help`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]
PAGES = ("README.md", "docs/start.md")
# What is not run: under which heading.
NEEDS_DATA = {
    "On real radiographs": "needs archives of real radiographs",
    "On MIMIC-CXR": "needs MIMIC-CXR, which takes an account, and CXR-BERT",
}
ONCE = "make demo"
SERVES = "medclip-debias view"  # runs until it is stopped
LONGEST = 3600.0
"""Seconds that one command may take."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.S | re.M)
_MARK = "@@ended "


@dataclass(frozen=True)
class Step:
    """What a page tells its reader to do: a command, or a block of Python; why it is left out."""

    page: str
    text: str
    python: bool = False
    left_out: str = ""

    @property
    def command(self) -> str:
        return "" if self.python else self.text.split("  #")[0].strip()

    @property
    def title(self) -> str:
        if self.python:
            return f"Python, {len(self.text.splitlines())} lines"
        return self.text.replace("\\\n", " ")


def steps(page: str, text: str) -> Iterator[Step]:
    """Every step of a page in its order; fences of other languages tell nobody to do anything."""
    for found in _FENCE.finditer(text):
        kind, body = found.groups()
        headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text[: found.start()]), re.M)
        why = NEEDS_DATA.get(headings[-1] if headings else "", "")
        if kind == "python":
            yield Step(page, body, python=True, left_out=why)
        elif kind in ("", "bash", "sh"):
            for line in re.findall(r"(?:[^\n]*\\\n)*[^\n]+", body):
                yield Step(page, line, left_out=why)


def plan() -> list[Step]:
    """Every step of all pages; what was done on an earlier page is left out on a later one."""
    found: list[Step] = []
    for page in PAGES:
        for step in steps(page, (REPO / page).read_text(encoding="utf-8")):
            again = step.command == ONCE and any(done.command == ONCE for done in found)
            found.append(replace(step, left_out="was done before") if again else step)
    return found


class Shell:
    """One bash from the first step to the last, so that what a step sets holds for the next."""

    def __init__(self, folder: Path, variables: dict[str, str], scratch: Path) -> None:
        self.scratch = scratch
        self.process = _started(["bash", "--noprofile", "--norc"], cwd=folder, env=variables)

    def run(self, command: str) -> int:
        """Give one command, show what it prints, and return its exit code."""
        return int(self._answer(f"{{ {command}\n}} </dev/null"))

    def python(self, block: str) -> int:
        """Run a block as a file that lies elsewhere: what it imports must be installed."""
        file = self.scratch / "block.py"
        file.write_text(block, encoding="utf-8")
        return self.run_file(file)

    def run_file(self, file: Path) -> int:
        """Run a file of Python, and return its exit code."""
        return self.run(f"MPLBACKEND=agg python {file}")

    def serve(self, command: str) -> int:
        """Start a server, open the address that it prints, and stop it; 0 if a page came."""
        said = self.scratch / "server.txt"
        number = self.start(command, said)
        until = time.monotonic() + 600
        try:
            while time.monotonic() < until:
                time.sleep(1)
                text = said.read_text(encoding="utf-8")
                address = re.search(r"^http://\S+", text, re.M)
                if address and (page := _opened(address.group())) is not None:
                    print(f"  {address.group().split('?')[0]} gave {len(page)} bytes")
                    return 0 if b"<html" in page.lower() else 1
                if not _lives(number):
                    break
            print(said.read_text(encoding="utf-8"))
            return 1
        finally:
            if _lives(number):
                os.kill(number, signal.SIGTERM)
            self.wait(number)  # it may take a moment to end

    def start(self, command: str, said: Path) -> int:
        """Start a command that goes on, and writes into a file; the number of its process."""
        return int(self._answer(f"{command} </dev/null >{said} 2>&1 & server=$!", "$server"))

    def wait(self, _: int) -> None:
        """Wait until what was started has ended."""
        self._answer("wait $server")

    def close(self) -> None:
        _end(self.process)

    def _answer(self, command: str, value: str = "$?") -> str:
        """Give a command; show its output up to the mark, and return ``value`` behind it."""
        return answer(self.process, f'{command}\necho "{_MARK}{value}"', command)


class Preloaded(Shell):
    """A shell whose commands of this program, and Python, are done by forks of one process."""

    def __init__(self, folder: Path, variables: dict[str, str], scratch: Path) -> None:
        super().__init__(folder, variables, scratch)
        self.python_place = folder / ".venv/bin/python"
        self.options: dict[str, Any] = {"cwd": folder, "env": variables | {"MPLBACKEND": "agg"}}
        self.started: subprocess.Popen[str] | None = None

    def run(self, command: str) -> int:
        """Give one command, to the shell where it needs one."""
        words = shlex.split(command.replace("\\\n", " "), comments=True)
        plain = not set(command.split("  #")[0]) & set("|<>;&$`*?")
        if plain and words[:1] == ["medclip-debias"] and "--help" not in words:
            return self._fork(words)
        return super().run(command)

    def run_file(self, file: Path) -> int:
        """Run a file of Python, and return its exit code."""
        return self._fork(["python", str(file)])

    def start(self, command: str, said: Path) -> int:
        """Start a command that goes on, and writes into a file; the number of its process."""
        return self._fork(["start", str(said), *shlex.split(command, comments=True)])

    def wait(self, number: int) -> None:
        """Wait until what was started has ended."""
        self._fork(["wait", str(number)])

    def close(self) -> None:
        """End the process with what still runs in it, and the shell."""
        if self.started is not None:
            _end(self.started)
        super().close()

    def _fork(self, words: list[str]) -> int:
        if self.started is None:
            # Without the folder of the script: what is imported is what was installed.
            program = Path(__file__).with_name("preloaded.py")
            self.started = _started([self.python_place, "-P", program, _MARK], **self.options)
        return int(answer(self.started, json.dumps(words), " ".join(words)))


def _started(words: list[str | Path], **more: Any) -> subprocess.Popen[str]:
    """Start a process that is talked to line by line."""
    return subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        **more,
    )


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()


def _lives(number: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
    except OSError:
        return False


def answer(process: subprocess.Popen[str], line: str, command: str) -> str:
    """Give a line to a process; show what it prints up to the mark, and return what follows."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    began = time.monotonic()
    for said in process.stdout:
        before, mark, found = said.partition(_MARK)
        if mark:
            sys.stdout.write(before)
            return found.strip()
        sys.stdout.write(f"  {said}")
        if time.monotonic() - began > LONGEST:
            sys.exit(f"took more than {LONGEST:.0f} s: {command}")
    sys.exit(f"the shell ended in: {command}")


def _opened(address: str) -> bytes | None:
    """The page that a browser shows for an address, or None as long as nobody answers.

    A page that only leads on to the next, with a cookie, is followed.
    """
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    content = b""
    for _ in range(3):
        try:
            with browser.open(address, timeout=60) as answer:
                content = answer.read()
        except OSError:
            return None
        onward = re.search(rb"http-equiv='refresh' content='0;url=([^']+)'", content)
        if not onward:
            break
        address = urllib.parse.urljoin(address, onward.group(1).decode())
    return content


def clone(folder: Path) -> None:
    """Copy what git keeps or would keep of this checkout, as a clone has it."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    for name in filter(None, names):
        if (REPO / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, folder / name)


def shorten(folder: Path, scratch: Path) -> None:
    """Give a clone settings that train a few steps; check and install the wheel that it makes.

    So one walk through the pages shows both: that they hold, and that the wheel goes the whole way.
    """
    import yaml

    from medclip_debias.cli.demo import QUICK
    from medclip_debias.settings_files import apply_overrides
    from wheel_check import build, check

    settings = folder / "configs/phantom/base.yaml"
    content = apply_overrides(yaml.safe_load(settings.read_text("utf-8")), QUICK["train"])
    settings.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    (scratch / "elsewhere").mkdir()
    check(build(scratch, folder), folder / ".venv", scratch / "elsewhere")
    for name in ("medclip_debias", "configs"):  # nothing but the wheel is there to be used
        shutil.rmtree(folder / name)
    (folder / ".venv/.installed").touch()


def follow(todo: list[Step], quick: bool) -> None:
    """Do every step; end with 1 at the first that fails."""
    from wheel_check import took, variables

    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
        folder, scratch = Path(name) / "medclip-debias", Path(name) / "scratch"
        folder.mkdir()
        scratch.mkdir()
        clone(folder)
        if quick:
            shorten(folder, scratch)
        kind = Preloaded if quick else Shell
        shell = kind(folder, variables(**({"DEMO": "--quick"} if quick else {})), scratch)
        try:
            for step in todo:
                if step.left_out:
                    continue
                print(f"\n{step.page}$ {step.title}", flush=True)
                start = time.monotonic()
                serves = not step.python and step.text.startswith(SERVES)
                act = shell.python if step.python else shell.serve if serves else shell.run
                code = act(step.text)
                print(f"  {time.monotonic() - start:.0f} s", flush=True)
                if code:
                    sys.exit(f"{step.page}: ended with {code}: {step.title}")
        finally:
            shell.close()
    print(f"\nevery step that could be done was; {took(began)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute, and no network")
    options = parser.parse_args()
    todo = plan()
    for step in todo:
        if step.left_out:
            print(f"left out, {step.left_out}: {step.title}")
    done = sum(not step.left_out for step in todo)
    print(f"{done} steps are done, {len(todo) - done} left out")
    follow(todo, options.quick)


if __name__ == "__main__":
    main()

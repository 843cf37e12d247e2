"""Check the Dockerfile without a Docker engine.

    python scripts/check_dockerfile.py                      # quick: reads the files, runs nothing
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm BASE
    python scripts/check_dockerfile.py --chroot BASE --work WORK      # root; minutes and gigabytes

The second form plays every instruction of every stage in a copy of BASE, a bare Debian of the
release that the base image is made of: RUN, ENTRYPOINT and CMD through chroot as the user of that
line, COPY under the rules of .dockerignore, ENV, ARG and WORKDIR as Docker would. What it cannot
prove: that the base image's tag exists, and that a GPU is seen from inside.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

REPO = Path(__file__).parents[1]
# Of the caller's environment, what a network behind a proxy with its own certificate needs.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_NETWORK = ("SSL_CERT_FILE", *_PROXIES, *map(str.lower, _PROXIES))


@dataclass
class Instruction:
    """One instruction: its line in the file, its word, and all that follows it."""

    line: int
    word: str
    rest: str


@dataclass
class Stage:
    """What one FROM begins."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)


def parse(text: str) -> tuple[dict[str, str], list[Stage]]:
    """Arguments before the first FROM, and the stages."""
    outer: dict[str, str] = {}
    stages: list[Stage] = []
    for one in _instructions(text):
        if one.word == "FROM":
            base, _, name = one.rest.partition(" AS ")
            stages.append(Stage(name.strip() or str(len(stages)), base.strip()))
        elif stages:
            stages[-1].instructions.append(one)
        elif one.word == "ARG":
            name, _, value = one.rest.partition("=")
            outer[name] = value
        else:
            raise ValueError(f"line {one.line}: {one.word} stands before the first FROM")
    return outer, stages


def _instructions(text: str) -> Iterator[Instruction]:
    kept, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        first = first or number
        kept += line.removesuffix("\\") if line.endswith("\\") else line
        if line.endswith("\\"):
            continue
        word, _, rest = kept.strip().partition(" ")
        yield Instruction(first, word.upper(), rest.strip())
        kept, first = "", 0


def ignored(path: str, rules: list[str]) -> bool:
    """Whether ``.dockerignore`` keeps ``path`` (relative, with /) out of the context.

    The last rule that fits the path or a folder above it decides, as Docker has it.
    """
    out = False
    parts = path.split("/")
    above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    for rule in rules:
        keeps = rule.startswith("!")
        pattern = rule.removeprefix("!").strip("/")
        if any(_fits(place, pattern) for place in above):
            out = not keeps
    return out


def _fits(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return _fits(path, pattern[3:]) or any(
            _fits(path[at + 1 :], pattern[3:]) for at, c in enumerate(path) if c == "/"
        )
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def read_rules(repo: Path) -> list[str]:
    """Rules of the repository's ``.dockerignore``."""
    lines = (repo / ".dockerignore").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def context(repo: Path) -> list[str]:
    """Files that git tracks or would track and ``.dockerignore`` lets into the context."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=True)
    rules = read_rules(repo)
    found = sorted(set(done.stdout.splitlines()))
    return [path for path in found if not ignored(path, rules) and (repo / path).is_file()]


def quick(repo: Path) -> list[str]:
    """What is wrong, as sentences; runs no instruction."""
    problems: list[str] = []
    _, stages = parse((repo / "docker/Dockerfile").read_text(encoding="utf-8"))
    files = context(repo)
    for one in (i for stage in stages for i in stage.instructions if i.word == "COPY"):
        words = one.rest.split()
        if words[0].startswith("--from="):
            continue
        problems += [
            f"docker/Dockerfile, line {one.line}: COPY {source}: not in the context"
            for source in words[:-1]
            if not any(path == source or path.startswith(f"{source}/") for path in files)
        ]
    lines = (repo / "requirements.lock").read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        pin = re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+ \\", line)
        if not pin and not re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line):
            problems.append(
                f"requirements.lock, line {number}: neither 'name==version \\' nor a hash"
            )
    return problems


# ------------------------------------------------------------------------------ in a chroot


@dataclass
class Build:
    """A stage as far as it was played: its root file system and what later lines depend on."""

    root: Path
    env: dict[str, str]
    args: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    entry: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)


class Player:
    """Plays stages in copies of a bare root file system."""

    def __init__(self, repo: Path, base: Path, work: Path) -> None:
        self.repo, self.work, self.files = repo, work, context(repo)
        self.bare = Build(base, {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"})
        self.builds: dict[str, Build] = {}

    def play(self, outer: dict[str, str], stages: list[Stage]) -> None:
        """Play all of them in order; ends the program at the first line that fails."""
        for stage in stages:
            print(f"\n== stage {stage.name} from {stage.base} ({len(outer)} outer ARG)", flush=True)
            before, root = self.builds.get(stage.base, self.bare), self.work / stage.name
            build = replace(before, root=root, env=dict(before.env), args={})
            # Hard links: nothing that is played writes into a file of an earlier stage.
            subprocess.run(["cp", "-al", str(before.root), str(root)], check=True)
            like_the_base_image(root)
            for one in stage.instructions:
                self._play(one, build)
            self.builds[stage.name] = build
            if build.entry:
                words = build.entry + build.cmd
                self._run(f"exec {' '.join(words)}", build, f"CMD {words}", build.env)

    def _play(self, one: Instruction, build: Build) -> None:
        match one.word:
            case "ARG":
                name, _, build.args[name] = one.rest.partition("=")
            case "ENV":
                for name, value in re.findall(r"(\S+?)=(\S+)", one.rest):
                    build.env[name] = _expand(value, build.env | build.args)
            case "WORKDIR":
                build.folder = one.rest
                (build.root / one.rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "USER":
                build.user = _expand(one.rest, build.env | build.args)
            case "ENTRYPOINT":
                build.entry = json.loads(one.rest)
            case "CMD":
                build.cmd = json.loads(one.rest)
            case "COPY":
                count = self._copy(one.rest.split(), build)
                if not count:
                    sys.exit(f"line {one.line}: COPY {one.rest}: nothing in the context")
                print(f"line {one.line}: COPY {one.rest}: {count}", flush=True)
            case "RUN":
                self._run(one.rest, build, f"line {one.line}: RUN", build.env | build.args)
            case _:
                sys.exit(f"line {one.line}: {one.word} is not understood")

    def _copy(self, words: list[str], build: Build) -> str:
        """Copy from the context or an earlier stage; say how much, or nothing."""
        *sources, target = words
        place = Path(os.path.normpath(os.path.join(build.folder, target)))  # noqa: PTH118
        place = build.root / str(place).lstrip("/")
        if sources[0].startswith("--from="):
            other = self.builds[sources[0].removeprefix("--from=")].root
            place.parent.mkdir(parents=True, exist_ok=True)
            command = ["cp", "-al", str(other / sources[1].lstrip("/")), str(place)]
            subprocess.run(command, check=True)
            return "done"
        count = 0
        for source, path in product(sources, self.files):
            if path == source:
                goal = place / Path(path).name if target.endswith("/") else place
            elif path.startswith(f"{source}/"):
                goal = place / path.removeprefix(f"{source}/")
            else:
                continue
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.repo / path, goal)
            count += 1
        return f"{count} files" if count else ""

    def _run(self, command: str, build: Build, name: str, env: dict[str, str]) -> None:
        given = {key: os.environ[key] for key in _NETWORK if key in os.environ}
        script = f"cd {build.folder} && {command}"
        words = ["chroot", f"--userspec={build.user}", str(build.root), "/bin/sh", "-c", script]
        began = time.perf_counter()
        finished = subprocess.run(
            words, env=given | {"HOME": "/tmp"} | env, capture_output=True, text=True, check=False
        )
        shown = (finished.stdout + finished.stderr).strip().splitlines()
        seconds, code = time.perf_counter() - began, finished.returncode
        print(f"{name}: exit {code}, {seconds:.0f} s, user {build.user}", flush=True)
        print(*(f"    {text}" for text in shown[-40 if code else -4 :]), sep="\n", flush=True)
        if code:
            sys.exit(f"{name} failed (docker/Dockerfile)")


def like_the_base_image(root: Path) -> None:
    """The names of Python that the official image has, and this machine's network."""
    for name in ("python", "python3"):
        link = root / "usr/local/bin" / name
        if not link.exists():
            link.symlink_to("/usr/bin/python3")
    for path in (Path("/etc/resolv.conf"), Path("/etc/ssl/certs/ca-certificates.crt")):
        target = root / path.relative_to("/")
        target.unlink(missing_ok=True)
        shutil.copyfile(path, target)
    path = root / "etc/apt/sources.list"  # to be changed below without changing the base
    if path.is_file():
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)


def _expand(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], ""), text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chroot", type=Path, help="a bare Debian, as debootstrap makes it")
    parser.add_argument("--work", type=Path, help="empty folder on the same disk, for the stages")
    options = parser.parse_args()
    problems = quick(REPO)
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(context(REPO))} files in the context; every COPY is served; the lock is plain.")
    if options.chroot is None:
        return
    if options.work is None:
        parser.error("--chroot needs --work")
    options.work.mkdir(parents=True)
    player = Player(REPO, options.chroot.resolve(), options.work.resolve())
    player.play(*parse((REPO / "docker/Dockerfile").read_text(encoding="utf-8")))
    print("\nevery line was played.")


if __name__ == "__main__":
    main()

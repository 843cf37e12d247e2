"""Check the Dockerfile without a Docker engine; hadolint, a part of the tests, judges its style.

    python scripts/check_dockerfile.py

Reads the files and runs nothing: every file that a COPY names is in the context under the rules of
.dockerignore, and the lock holds pinned versions and hashes alone.
"""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).parents[1]


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


def main() -> None:
    problems = quick(REPO)
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(context(REPO))} files in the context; every COPY is served; the lock is plain.")


if __name__ == "__main__":
    main()

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
from pathlib import Path

REPO = Path(__file__).parents[1]
_LOCKED = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?")


def ignored(path: str, rules: list[str]) -> bool:
    """Whether ``.dockerignore`` keeps ``path`` (relative, with /) out of the context.

    The last rule that fits the path or a folder above it decides, as Docker has it.
    """
    out = False
    parts = path.split("/")
    above = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    for rule in rules:
        pattern = rule.removeprefix("!").strip("/")
        if any(_fits(place, pattern) for place in above):
            out = not rule.startswith("!")
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
    dockerfile = (repo / "docker/Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    files = context(repo)
    problems = [
        f"docker/Dockerfile: COPY {source}: not in the context"
        for words in re.findall(r"^COPY (?!--from=)(.+)$", dockerfile, re.M)
        for source in words.split()[:-1]
        if not any(path == source or path.startswith(f"{source}/") for path in files)
    ]
    lines = (repo / "requirements.lock").read_text().splitlines()
    return problems + [
        f"requirements.lock, line {number}: neither 'name==version \\' nor a hash"
        for number, line in enumerate(lines, start=1)
        if not _LOCKED.fullmatch(line)
    ]


def main() -> None:
    problems = quick(REPO)
    if problems:
        sys.exit("\n".join(problems))
    print(f"{len(context(REPO))} files in the context; every COPY is served; the lock is plain.")


if __name__ == "__main__":
    main()

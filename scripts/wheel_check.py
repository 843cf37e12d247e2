"""Build the wheel and ask it for what it carries: `make wheel-check`.

Builds the source archive and from it the wheel, in a copy, without a network; compares what is in
it with the package; installs it into an environment of its own, which sees the packages of the
running Python but not this checkout, and asks it from a folder outside the checkout for its
version, pages and settings. `newcomer.py --quick`, a part of `make test`, does the same with the
wheel with which it goes the whole way. Ends with 1 and a sentence where something is missing.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path

UV = Path(sys.executable).with_name("uv")
# Of the caller's environment, what programs need anywhere, and a network behind a proxy.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_KEPT = ("HOME", "LANG", "TMPDIR", "OMP_NUM_THREADS", "SSL_CERT_FILE", *_PROXIES)


def variables(*folders: Path, **more: str) -> dict[str, str]:
    """The variables of a shell that knows nothing of this checkout, ``folders`` first in ``PATH``.

    Virtual environments are left out of it.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    own = os.environ.get("PATH", os.defpath).split(":")
    path = ":".join([*map(str, folders), *(p for p in own if not Path(p, "activate").exists())])
    return kept | {"PATH": path, "HF_HUB_OFFLINE": "1"} | more


def took(began: float) -> str:
    """Time since ``began``, and of all programs that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime
    return f"{time.perf_counter() - began:.0f} s, {processor:.0f} s of processors"


def make_environment(folder: Path, *what: str) -> None:
    """Make a virtual environment, and install wheels without a network and dependencies."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin/python"
    inside = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # A folder in a .pth is searched, but its own .pth files are not read: so the packages are seen,
    # and this checkout, which an editable install names in such a file, is not.
    Path(inside, "packages.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    flags = ["--quiet", "--offline", "--no-deps", "--no-build-isolation"]
    words = [UV, "pip", "install", *flags, "--python", python, *what]
    subprocess.run([str(word) for word in words], check=True)


REPO = Path(__file__).parents[1]
PACKAGE = "medclip_debias"
BUILT_FROM = (PACKAGE, "configs", "docs", "pyproject.toml", "setup.py", "README.md", "LICENSE")
DROPPED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")
# One process for all that is asked: each start takes as long as what it answers.
ASKED = """
import json, medclip_debias
from medclip_debias.named_settings import names
print(json.dumps([medclip_debias.__version__, medclip_debias.__file__, sorted(names())]))
"""


def build(folder: Path, checkout: Path = REPO) -> Path:
    """Build source archive and wheel from a copy of the sources; the wheel's path."""
    source = folder / "source"
    source.mkdir()
    for name in BUILT_FROM:
        path = checkout / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=DROPPED)
        else:
            shutil.copy(path, source / name)
    command = [f"{UV}", "build", "--quiet", "--offline", "--no-build-isolation"]
    command += ["--python", sys.executable, "--out-dir", f"{folder / 'dist'}", f"{source}"]
    subprocess.run(command, check=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def left_out(wheel: Path) -> list[str]:
    """Files and pages that the wheel lacks, and files of the wheel that come from elsewhere."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    inside = {
        re.sub(r"^[^/]+\.data/data/share/doc/medclip-debias/", "docs/", name) for name in names
    }
    files = [path for path in (REPO / PACKAGE).rglob("*") if path.is_file()]
    files += [*(REPO / "docs").glob("*.md"), *(REPO / "docs/studies").glob("*.md")]
    there = {str(p.relative_to(REPO)) for p in files if "__pycache__" not in p.parts}
    there |= {f"{PACKAGE}/configs/{name}.yaml" for name in settings_names()}
    return sorted(there ^ inside)


def check(wheel: Path, environment: Path, place: Path) -> None:
    """End with 1 unless the wheel holds the package's files and a new environment answers.

    It is asked from ``place``, an empty folder outside the checkout.
    """
    different = left_out(wheel)
    expect(not different, f"the wheel holds the package's files, but for {different}")
    print(f"{wheel.name}, {wheel.stat().st_size / 2**20:.1f} MiB")
    make_environment(environment, str(wheel))

    def command(*words: str) -> str:
        done = subprocess.run(
            words,
            cwd=place,
            env=variables(environment / "bin"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{done.stdout}{done.stderr}\n{words[0]} ended with {done.returncode}.")
        return done.stdout

    page = command("medclip-debias", "docs", "start")
    expect(page == (REPO / "docs/start.md").read_text(encoding="utf-8"), "docs prints a page")
    version, file, named = json.loads(command("python", "-c", ASKED))
    expect(version == wheel.name.split("-")[1], "the version is the wheel's")
    expect(set(named) == settings_names(), "every file of settings has its name")
    expect(environment in Path(file).parents, "the installed package was used, not the checkout")


def settings_names() -> set[str]:
    root = REPO / "configs"
    return {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")}


def expect(true: bool, what: str) -> None:
    """End with 1 where ``what`` is not so."""
    if not true:
        sys.exit(f"not so: {what}.")


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        place = Path(name) / "elsewhere"
        place.mkdir()
        check(build(Path(name)), Path(name) / "environment", place)
    print(f"the wheel is whole; {took(began)}")


if __name__ == "__main__":
    main()

"""Build the wheel and use it alone: `make wheel-check`.

Builds the source archive and from it the wheel, in a copy, without a network; compares what is in
it with the package; installs it into an environment of its own, and goes the whole way on the
phantom from a folder outside the checkout, with the console command, settings by name, a file of
one's own and the Python front door. Ends with 1 and a sentence where something is missing.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from clean_environment import UV, make_environment, took, variables

REPO = Path(__file__).parents[1]
PACKAGE = "medclip_debias"
BUILT_FROM = (PACKAGE, "docs", "pyproject.toml", "README.md", "LICENSE")
DROPPED = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")
# In one process, because each import of torch takes seconds: the demo, a run from a file of one's
# own, and the front door on its model.
INSIDE = """
import sys
from pathlib import Path
import medclip_debias as md
from medclip_debias.cli import run
from medclip_debias.cli.demo import QUICK
from medclip_debias.data.prompts import load_prompts
assert run(["demo", "--quick"]) == 0
assert Path("runs/demo/report.html").is_file()
assert run(["train", "mine.yaml", "out=runs/mine", *QUICK["train"]]) == 0
assert run(["evaluate", "runs/mine/model", "runs/demo/prepared", "--out", "runs/mine",
            *QUICK["evaluate"]]) == 0
image = next(Path("runs/demo/phantom/files/p19").rglob("*.dcm"))
found = md.load("runs/mine/model").zero_shot(image)
assert found.shape == (1, len(load_prompts("chex5").classes)), found
assert len(md.results("runs/mine")) > 0
print(md.__file__)
"""


def build(folder: Path) -> Path:
    """Build source archive and wheel from a copy of the sources; the wheel's path."""
    source = folder / "source"
    source.mkdir()
    for name in BUILT_FROM:
        path = REPO / name
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, source / name, **({"ignore": DROPPED} if path.is_dir() else {}))
    command = [UV, "build", "--quiet", "--offline", "--no-build-isolation"]
    command += ["--python", sys.executable, "--out-dir", folder / "dist", source]
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
    return sorted(there ^ inside)


def use(wheel: Path, folder: Path) -> None:
    """Install the wheel into an environment of its own and use it from ``folder``."""
    environment = folder / "environment"
    make_environment(environment, str(wheel))
    place = folder / "elsewhere"
    place.mkdir()

    def command(*words: str) -> str:
        print(f"$ {' '.join(words[:6])}", flush=True)
        began = time.perf_counter()
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
        print(f"  {time.perf_counter() - began:.0f} s", flush=True)
        return done.stdout

    version = wheel.name.split("-")[1]
    expect(command("medclip-debias", "--version").strip() == version, "--version is the wheel's")
    listed = json.loads(command("medclip-debias", "config", "list", "--json"))["configs"]
    expect(set(listed) == settings_names(), "config list names every file of settings")
    page = command("medclip-debias", "docs", "start")
    expect(page == (REPO / "docs/start.md").read_text(encoding="utf-8"), "docs prints a page")
    command("medclip-debias", "config", "new", "phantom/demo", "mine.yaml")
    shown = command("medclip-debias", "config", "show", "mimic_cxr/debiased", "--json")
    expect(json.loads(shown)["loss"]["kind"] == "debiased", "settings go by name")
    (place / "inside.py").write_text(INSIDE, encoding="utf-8")
    used = Path(command("python", "inside.py").splitlines()[-1])
    expect(environment in used.parents, "the installed package was used, not the checkout")


def settings_names() -> set[str]:
    """Names of the settings in the checkout."""
    root = REPO / PACKAGE / "configs"
    return {path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml")}


def expect(true: bool, what: str) -> None:
    """End with 1 where ``what`` is not so."""
    if not true:
        sys.exit(f"not so: {what}.")


def main() -> None:
    """Build, compare, install, use."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="wheel-") as name:
        wheel = build(Path(name))
        different = left_out(wheel)
        expect(not different, f"the wheel holds the package's files, but for {different}")
        print(f"{wheel.name}, {wheel.stat().st_size / 2**20:.1f} MiB")
        use(wheel, Path(name))
    print(f"the wheel works alone; {took(began)}")


if __name__ == "__main__":
    main()

"""An environment that holds this program anew and sees the packages that are already installed.

What is under test is installed as users install it; the packages it needs are those of the running
Python, which takes no network and a second. This checkout is not to be seen from inside.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

UV = Path(sys.executable).with_name("uv")
# Of the caller's environment, what programs need anywhere, and a network behind a proxy.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_KEPT = ("HOME", "LANG", "TMPDIR", "OMP_NUM_THREADS", "SSL_CERT_FILE", *_PROXIES)


def variables(*folders: Path, **more: str) -> dict[str, str]:
    """The variables of a shell that knows nothing of this checkout.

    Args:
        folders: put before the caller's in ``PATH``, of which virtual environments are left out.
        more: further variables.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    own = os.environ.get("PATH", os.defpath).split(":")
    path = ":".join([*map(str, folders), *(p for p in own if not Path(p, "activate").exists())])
    return kept | {"PATH": path, "HF_HUB_OFFLINE": "1"} | more


def took(began: float) -> str:
    """Time since ``began``, and of all programs that were started and have ended.

    Args:
        began: of `time.perf_counter`.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime
    return f"{time.perf_counter() - began:.0f} s, {processor:.0f} s of processors"


def make_environment(folder: Path, *what: str) -> None:
    """Make a virtual environment, and install into it without a network and without dependencies.

    Args:
        folder: of the environment, not there yet.
        what: words for ``uv pip install``, as a wheel's path.
    """
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

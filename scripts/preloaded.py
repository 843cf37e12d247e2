"""Run commands of the program, and files of Python, in forks of one process that has imported.

`newcomer.py --quick` starts it with the Python of the environment under test. A line of standard
input is a JSON list of words: ``["medclip-debias", "train", ...]`` or ``["python", FILE]``. What
the command prints comes as it does; then a line of its own, the mark (first argument) and the exit
code. Each import of torch would take longer than most of these commands.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback

import torchvision  # noqa: F401
from matplotlib.backends import backend_agg, backend_svg  # noqa: F401
from transformers.models.bert import modeling_bert  # noqa: F401

from medclip_debias import cli


def act(words: list[str]) -> int:
    """Do what one line says; its exit code."""
    program, *rest = words
    if program != "python":
        return cli.run(rest)
    sys.argv = rest
    try:
        runpy.run_path(rest[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = 1
            try:
                code = act(json.loads(line))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        print(f"{sys.argv[1]}{os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    main()

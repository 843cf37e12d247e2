"""Run commands of the program, and files of Python, in forks of one process that has imported.

`newcomer.py --quick` starts it with the Python of the environment under test. A line of standard
input is a JSON list of words: ``["medclip-debias", "train", ...]`` or ``["python", FILE]``. What
the command prints comes as it does; then a line of its own, the mark (first argument) and the exit
code. ``["start", FILE, ...]`` goes on, prints into FILE, and the number of its process comes behind
the mark; ``["wait", NUMBER]`` waits for it. Each import of torch would take longer than most of
these commands.
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
        first, *words = json.loads(line)
        child = int(words[0]) if first == "wait" else os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = 1
            try:
                if first == "start":
                    for number in (1, 2):
                        os.dup2(os.open(words[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
                    first, *words = words[1:]
                code = act([first, *words])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        done = child if first == "start" else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(f"{sys.argv[1]}{done}", flush=True)


if __name__ == "__main__":
    main()

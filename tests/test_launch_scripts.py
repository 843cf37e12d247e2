"""The launch scripts, with programs of our own in place of Slurm's and of the training."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
SAVED = 75


def program(path: Path, body: str) -> Path:
    """An executable bash script."""
    path.write_text(f"#!/usr/bin/env bash\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


# ----------------------------------------------------------------------------- worker.sh


def worker(tmp_path: Path, body: str) -> tuple[list[str], dict[str, str]]:
    """Command and environment of rank 3, whose program does ``body``."""
    environment = os.environ | {
        "CODES": str(tmp_path / "codes"),
        "PROGRAM": str(program(tmp_path / "program", body)),
        "RANK": "3",
        "LOCAL_RANK": "1",
    }
    return [str(SCRIPTS / "slurm" / "worker.sh"), "train", "a config.yaml"], environment


@pytest.mark.parametrize(("code", "reported"), [(SAVED, 0), (2, 2)])
def test_a_worker_records_the_code_and_calls_saved_a_success(tmp_path, code, reported):
    command, environment = worker(tmp_path, f'printf "%s;" "$@" >{tmp_path}/words; exit {code}')
    done = subprocess.run(command, env=environment, timeout=30)
    assert done.returncode == reported
    assert (tmp_path / "codes" / "rank-3").read_text() == f"{code}\n"
    assert (tmp_path / "words").read_text() == "train;a config.yaml;"


def until(path: Path) -> None:
    """Wait for a file."""
    end = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.02)


@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_a_signal_reaches_the_program_and_its_code_is_waited_for(tmp_path, name):
    body = (
        f"trap 'sleep 0.2; exit {SAVED}' {name}\ntouch {tmp_path}/ready\n"
        "while true; do sleep 0.05; done"
    )
    command, environment = worker(tmp_path, body)
    running = subprocess.Popen(command, env=environment)
    until(tmp_path / "ready")
    codes = tmp_path / "codes"
    end = time.monotonic() + 20
    while not (files := list(codes.glob("pid-*-1"))):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert int(files[0].read_text()) == running.pid
    running.send_signal(getattr(signal, f"SIG{name}"))
    assert running.wait(30) == 0
    assert (tmp_path / "codes" / "rank-3").read_text() == f"{SAVED}\n"


def test_a_code_of_an_earlier_start_is_gone_while_the_program_runs(tmp_path):
    codes = tmp_path / "codes"
    codes.mkdir()
    (codes / "rank-3").write_text(f"{SAVED}\n")
    (codes / "rank-2").write_text("0\n")  # of another process
    command, environment = worker(tmp_path, f'ls "$CODES" >{tmp_path}/seen; kill -KILL $PPID')
    done = subprocess.run(command, env=environment, timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert "rank-3" not in (tmp_path / "seen").read_text().split()
    assert [file.name for file in codes.glob("rank-*")] == ["rank-2"]


# --------------------------------------------------------------------------- train.sbatch


def job(tmp_path: Path, *codes: int, **more: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run train.sbatch on one node whose processes end with ``codes``; what scontrol was asked."""
    fakes = tmp_path / "bin"
    fakes.mkdir()
    program(fakes / "scontrol", f'echo "$@" >>{tmp_path}/reported; [ "$1" != show ] || echo node1')
    program(fakes / "srun", 'exec "$@"')
    # torchrun as it is here: starts what comes after --no-python once a process, and fails if
    # one of them does.
    program(
        fakes / "torchrun",
        'while [ "$1" != --no-python ]; do shift; done; shift; failed=0\n'
        f"for rank in {' '.join(map(str, range(len(codes))))}; do\n"
        '    RANK=$rank LOCAL_RANK=$rank "$@" || failed=1\ndone\n'
        f"exit {codes[0] if len(codes) == 1 and codes[0] != SAVED else '$failed'}",
    )
    # A process that was killed outright (-9) takes its worker.sh along: no code is left.
    ends = "".join(
        f"{rank}) " + ("kill -KILL $PPID" if code == -9 else f"exit {code}") + ";; "
        for rank, code in enumerate(codes)
    )
    program(fakes / "medclip-debias", f"case $RANK in {ends} esac")
    (tmp_path / "reported").touch()
    environment = os.environ | {
        "PATH": f"{fakes}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_GPUS_ON_NODE": str(len(codes)),
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    (tmp_path / "scripts").symlink_to(SCRIPTS)
    done = subprocess.run(
        ["bash", SCRIPTS / "slurm" / "train.sbatch", "run.yaml"],
        env=environment | more,
        capture_output=True,
        text=True,
        timeout=60,
    )
    reported = [
        line for line in (tmp_path / "reported").read_text().splitlines() if "requeue" in line
    ]
    assert not list(tmp_path.glob(".codes-*"))
    return done, "\n".join(reported)


def test_a_job_whose_processes_all_saved_goes_back_into_the_queue(tmp_path):
    done, reported = job(tmp_path, SAVED, SAVED, SAVED)
    assert (done.returncode, reported) == (0, "requeue 7")


@pytest.mark.parametrize("codes", [(2, SAVED), (SAVED, 0), (SAVED, -9)])
def test_a_job_of_which_one_process_did_not_save_is_not_called_saved(tmp_path, codes):
    done, reported = job(tmp_path, *codes)
    assert (done.returncode, reported) == (1, "")
    assert "1 of 2 processes saved; not process" in done.stderr
    assert "the job goes back" not in done.stderr


@pytest.mark.parametrize("code", [0, 2])
def test_a_finished_or_failed_job_does_not(tmp_path, code):
    done, reported = job(tmp_path, code)
    assert (done.returncode, reported) == (code, "")


@pytest.mark.parametrize(
    ("more", "again"),
    [
        ({"SLURM_RESTART_COUNT": "100"}, False),  # the default
        ({"SLURM_RESTART_COUNT": "1", "MAX_REQUEUES": "2"}, True),
        ({"MAX_REQUEUES": "0"}, False),
    ],
)
def test_a_job_is_requeued_only_so_often(tmp_path, more, again):
    done, reported = job(tmp_path, SAVED, **more)
    assert reported == ("requeue 7" if again else "")
    assert done.returncode == (0 if again else SAVED)
    assert ("submit it again" in done.stderr) != again


# --------------------------------------------------------------------- train_mimic_cxr.sh


@pytest.mark.parametrize(
    ("words", "run"),
    [
        ([], ["mimic_cxr/base", "--loss debiased_language_model"]),
        (["--loss", "xclr"], ["mimic_cxr/base", "--loss xclr"]),
        (["phantom/demo"], ["config show phantom/demo prepared="]),
    ],
)
def test_the_whole_way_trains_the_papers_method_unless_another_is_given(tmp_path, words, run):
    program(tmp_path / "medclip-debias", f'echo "$*" >>{tmp_path}/words; exit 3')
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [SCRIPTS / "train_mimic_cxr.sh", tmp_path, tmp_path, *words]
    subprocess.run(command, env=environment, cwd=SCRIPTS.parent, capture_output=True, timeout=30)
    said = (tmp_path / "words").read_text().splitlines()[0]
    assert all(part in said for part in run)
    assert said.count("--loss") == sum("--loss" in part for part in run)

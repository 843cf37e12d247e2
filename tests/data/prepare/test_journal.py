"""Runs that are killed, run twice at once, or meet a full disk: nothing is half-written or lost."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare, prepare_part
from medclip_debias.data.prepare.journal import Journal
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from tests.disk import files_of_at_most

SMALL = PrepareSettings(size=32)
FORK = multiprocessing.get_context("fork")


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "items.key"}


def forked(function, *arguments):
    process = FORK.Process(target=function, args=arguments)
    process.start()
    return process


def kill_at(tree, out, share, workers):
    """Prepare, and die by SIGKILL when ``share`` of the work is done."""

    def progress(done, total):
        if done >= share * total:
            os.kill(os.getpid(), signal.SIGKILL)

    prepare(tree, out, SMALL, workers=workers, progress=progress)


class TestKilled:
    @pytest.mark.parametrize(
        ("share", "workers"), [(0.01, 2), (0.3, 1), (0.55, 2), (0.8, 1), (1.0, 1), (1.0, 2)]
    )
    def test_a_killed_run_goes_on_to_the_same_bytes(
        self, small_phantom, uninterrupted, tmp_path, share, workers
    ):
        out = tmp_path / "o"
        process = forked(kill_at, small_phantom, out, share, workers)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert not out.exists()
        said = []
        prepare(small_phantom, out, SMALL, workers=1, say=said.append)
        assert any("resuming an interrupted run" in sentence for sentence in said)
        assert content(out) == uninterrupted
        assert [path.name for path in tmp_path.iterdir()] == ["o"]

    @pytest.mark.parametrize(
        "name", ["set/sentences.parquet", "set/manifest.parquet", "set/meta.json"]
    )
    def test_also_while_the_tables_are_written(self, small_phantom, uninterrupted, tmp_path, name):
        out = tmp_path / "o"
        process = forked(prepare, small_phantom, out, SMALL)
        target = tmp_path / "o.partial" / name
        while process.is_alive() and not target.exists():
            time.sleep(0.0005)
        process.kill()
        process.join(60)
        prepare(small_phantom, out, SMALL, workers=1)
        assert content(out) == uninterrupted
        assert [path.name for path in tmp_path.iterdir()] == ["o"]

    def test_again_and_again_at_any_moment(self, small_phantom, uninterrupted, tmp_path):
        out = tmp_path / "o"
        for attempt in range(40):
            process = forked(prepare, small_phantom, out, SMALL)
            process.join(0.03 + 0.06 * attempt)
            process.kill()
            process.join(60)
            if out.exists():  # whole, though the kill may still have met the process's last breath
                break
        assert content(out) == uninterrupted

    def test_worker_processes_do_not_outlive_a_killed_run(self, small_phantom, tmp_path):
        children = FORK.Queue()

        def die():
            def progress(done, total):
                if done >= 0.3 * total:
                    children.put([child.pid for child in psutil.Process().children()])
                    children.close()
                    children.join_thread()
                    os.kill(os.getpid(), signal.SIGKILL)

            prepare(small_phantom, tmp_path / "o", SMALL, workers=2, progress=progress)

        process = forked(die)
        pids = children.get(timeout=60)
        process.join(60)
        assert len(pids) == 2
        deadline = time.monotonic() + 10
        while (left := [p for p in pids if alive(p)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not left

    def test_what_is_done_is_not_done_again(self, small_phantom, tmp_path):
        out = tmp_path / "o"
        forked(kill_at, small_phantom, out, 0.8, 1).join(60)
        before = (tmp_path / "o.partial" / "images.jsonl").read_bytes()
        assert before.count(b"\n") > 16
        inode = (tmp_path / "o.partial" / "set" / "images.bin").stat().st_ino
        forked(kill_at, small_phantom, out, 0.9, 1).join(60)
        assert (tmp_path / "o.partial" / "images.jsonl").read_bytes().startswith(before)
        prepare(small_phantom, out, SMALL, workers=1)
        assert (out / "images.bin").stat().st_ino == inode

    def test_other_settings_start_over_and_say_so(self, small_phantom, tmp_path):
        out = tmp_path / "o"
        forked(kill_at, small_phantom, out, 0.8, 1).join(60)
        said = []
        settings = PrepareSettings(size=32, equalize=True)
        resumed = prepare(small_phantom, out, settings, workers=1, say=said.append)
        assert any("other settings" in sentence for sentence in said)
        fresh = prepare(small_phantom, tmp_path / "fresh", settings, workers=1)
        assert content(resumed.folder) == content(fresh.folder)

    def test_a_source_that_changed_meanwhile_is_noticed(self, tiny_tree, tmp_path):
        out = tmp_path / "o"
        process = forked(kill_at, tiny_tree.root, out, 1.0, 1)
        process.join(60)
        shutil.copy(tiny_tree.image("e"), tiny_tree.image("a"))
        tiny_tree.report("102").write_text(" IMPRESSION: Right effusion.\n")
        resumed = prepare(tiny_tree.root, out, SMALL, workers=1)
        fresh = prepare(tiny_tree.root, tmp_path / "fresh", SMALL, workers=1)
        assert content(resumed.folder) == content(fresh.folder)
        assert "Right effusion." in resumed.texts

    def test_a_part_goes_on_too(self, small_phantom, tmp_path):
        def die(out):
            def progress(done, total):
                if done >= 0.8 * total:
                    os.kill(os.getpid(), signal.SIGKILL)

            prepare_part(small_phantom, out, SMALL, "1/2", workers=1, progress=progress)

        prepare_part(small_phantom, tmp_path / "whole", SMALL, "1/2", workers=1)
        forked(die, tmp_path / "o").join(60)
        prepare_part(small_phantom, tmp_path / "o", SMALL, "1/2", workers=1)
        assert content(tmp_path / "o") == content(tmp_path / "whole")

    def test_between_the_renames_of_an_overwriting_run(self, tiny_tree, tmp_path):
        out = tmp_path / "o"
        first = prepare(tiny_tree.root, out, SMALL, workers=1).content_hash
        (tmp_path / "o.partial").mkdir()
        out.replace(tmp_path / "o.partial" / "old")  # what a kill there leaves
        for path in tiny_tree.root.glob("files/*/*/*/*"):
            path.write_bytes(b"damaged")
        with pytest.raises(UserError, match="nothing is left"):
            prepare(tiny_tree.root, out, SMALL, workers=1, overwrite=True)
        assert PreparedSet.open(out).content_hash == first


@pytest.fixture(scope="module")
def uninterrupted(small_prepared):
    return content(small_prepared)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestTwoAtOnce:
    def test_the_second_is_refused_and_the_first_unharmed(self, small_phantom, tmp_path, capsys):
        out = tmp_path / "o"
        go, going = FORK.Event(), FORK.Event()

        def slow():
            def progress(done, total):
                going.set()
                go.wait(30)

            prepare(small_phantom, out, SMALL, workers=1, progress=progress)

        process = forked(slow)
        assert going.wait(30)
        assert run(["prepare", str(small_phantom), str(out)]) == 2
        assert "another run is preparing it right now" in capsys.readouterr().err
        go.set()
        process.join(60)
        assert process.exitcode == 0
        PreparedSet.open(out)


class TestDisk:
    def test_a_full_disk_is_noticed_before_the_work(self, small_phantom, tmp_path, capfd):
        small = _tmpfs(tmp_path, "size=300k")
        try:
            assert run(["prepare", str(small_phantom), str(small / "o"), "--size", "128"]) == 2
            error = capfd.readouterr().err.splitlines()[-1]
            assert "its images need " in error or "No space left" in error
            assert "make room" in error
            assert list(small.iterdir()) == []
        finally:
            subprocess.run(["umount", str(small)], check=True)

    def test_a_disk_that_fills_up_later_keeps_what_is_done(
        self, small_phantom, uninterrupted, tmp_path, capsys
    ):
        """The limit on file sizes stands for the disk: it is met behind the first reports."""
        out = tmp_path / "o"

        with files_of_at_most(60_000):
            words = ["prepare", str(small_phantom), str(out), "--size", "32", "--workers", "1"]
            assert run(words) == 2
        said = capsys.readouterr().err
        assert "cannot be written (File too large)" in said
        assert "run the same command again to resume" in said
        assert not out.exists()
        resumed = prepare(small_phantom, out, SMALL, workers=1)
        assert content(resumed.folder) == uninterrupted
        assert [path.name for path in tmp_path.iterdir()] == ["o"]

    def test_a_read_only_output_is_a_sentence(self, tiny_tree, tmp_path, capsys):
        if os.geteuid():
            place = tmp_path / "ro"
            place.mkdir(mode=0o555)
        else:
            place = _tmpfs(tmp_path, "ro")
        try:
            assert run(["prepare", str(tiny_tree.root), str(place / "o")]) == 2
            error = capsys.readouterr().err.splitlines()[-1]
            assert "cannot be written (" in error
            assert str(place / "o") in error
        finally:
            if not os.geteuid():
                subprocess.run(["umount", str(place)], check=True)


def _tmpfs(tmp_path, options):
    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    return place


class TestJournal:
    @pytest.mark.parametrize("cut", [1, 7, 20])
    def test_a_line_that_was_cut_off_does_not_count(self, tmp_path, cut):
        journal = Journal(tmp_path / "j")
        journal.append({"head": number} for number in range(3))
        whole = journal.path.read_bytes()
        journal.path.write_bytes(whole[:-cut])
        kept = whole[:-cut].count(b"\n")
        assert [entry["head"] for _, _, entry in journal.entries()] == list(range(kept))
        done = []
        left = journal.unfinished([(number, None) for number in range(5)], done.append)
        assert [head for head, _ in left] == list(range(kept, 5))
        assert journal.path.read_bytes() == whole[: whole.index(b"\n") * kept + kept]

    def test_jobs_that_changed_are_done_again_with_all_behind_them(self, tmp_path):
        journal = Journal(tmp_path / "j")
        journal.append({"head": number} for number in range(5))
        left = journal.unfinished([(h, None) for h in (0, 1, "new", 3)], lambda _: None)
        assert [head for head, _ in left] == ["new", 3]
        assert [entry["head"] for _, _, entry in journal.entries()] == [0, 1]


def test_a_disk_without_locks_is_not_taken_for_another_run(tmp_path, monkeypatch):
    import errno

    from medclip_debias.data.prepare import journal

    def lockf(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(journal.fcntl, "lockf", lockf)
    with pytest.raises(UserError, match="its disk has no file locks"):
        journal.workspace(tmp_path / "set").__enter__()

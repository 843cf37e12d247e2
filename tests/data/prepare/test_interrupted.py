"""Runs that are killed, run twice at once, or meet a full disk: nothing is half-written or lost."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import time

import psutil
import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data import images
from medclip_debias.data.prepare import chunks, pixels, prepare, prepare_part, workspace
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from tests.data.set_files import set_files
from tests.disk import files_of_at_most

SMALL = PrepareSettings(size=32)
FORK = multiprocessing.get_context("fork")


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
    @pytest.mark.parametrize(("share", "workers"), [(0.01, 2), (0.55, 1), (1.0, 1)])
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
        assert set_files(out) == uninterrupted
        assert [path.name for path in tmp_path.iterdir()] == ["o"]

    def test_also_while_the_tables_are_written(self, small_phantom, uninterrupted, tmp_path):
        out = tmp_path / "o"
        process = forked(prepare, small_phantom, out, SMALL)
        target = tmp_path / "o.partial" / "set" / "sentences.parquet"
        deadline = time.monotonic() + 60
        while process.is_alive() and not target.exists() and time.monotonic() < deadline:
            time.sleep(0.0005)
        process.kill()
        process.join(60)
        prepare(small_phantom, out, SMALL, workers=1)
        assert set_files(out) == uninterrupted
        assert [path.name for path in tmp_path.iterdir()] == ["o"]

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

    def test_killed_again_it_does_nothing_twice_and_makes_a_damaged_chunk_anew(
        self, small_phantom, uninterrupted, tmp_path
    ):
        out, chunks = tmp_path / "o", tmp_path / "o.partial" / "chunks"
        forked(kill_at, small_phantom, out, 0.8, 2).join(60)
        before = {path: path.stat().st_ino for path in chunks.glob("images-*")}
        assert len(before) > 2
        forked(kill_at, small_phantom, out, 0.95, 1).join(60)
        assert before.items() <= {path: path.stat().st_ino for path in chunks.iterdir()}.items()
        for suffix, number in ((".bin", 0), (".json", 1)):
            path = sorted(chunks.glob(f"images-*{suffix}"))[number]
            whole = path.read_bytes()
            path.write_bytes(whole[:100] + b"\xff" * 50 + whole[150:])
        said = []
        prepare(small_phantom, out, SMALL, workers=2, say=said.append)
        assert set_files(out) == uninterrupted
        assert any("2 chunks of the interrupted run were not what it had" in line for line in said)

    @pytest.mark.parametrize("other", ["settings", "version"])
    def test_with_other_settings_or_another_version_it_starts_over_and_says_so(
        self, tiny_tree, tmp_path, monkeypatch, other
    ):
        forked(kill_at, tiny_tree.root, tmp_path / "o", 0.8, 1).join(60)
        settings = PrepareSettings(size=32, equalize=other == "settings")
        if other == "version":
            monkeypatch.setattr(chunks, "PREPARE_VERSION", -1)
        said = []
        resumed = prepare(tiny_tree.root, tmp_path / "o", settings, workers=1, say=said.append)
        assert any("another version; starting over" in line for line in said)
        fresh = prepare(tiny_tree.root, tmp_path / "fresh", settings, workers=1)
        assert set_files(resumed.folder) == set_files(fresh.folder)
        monkeypatch.undo()
        with pytest.raises(UserError, match="is not empty"):  # a finished set is not taken for ours
            prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1)

    def test_of_a_source_that_changed_meanwhile_only_what_is_new_is_read(
        self, tiny_tree, tmp_path, monkeypatch
    ):
        out, read = tmp_path / "o", []

        def read_radiograph(path, window):
            read.append(path)
            return images.read_radiograph(path, window)

        process = forked(kill_at, tiny_tree.root, out, 1.0, 1)
        process.join(60)
        shutil.copy(tiny_tree.image("e"), tiny_tree.image("a"))
        tiny_tree.report("102").write_text(" IMPRESSION: Right effusion.\n")
        monkeypatch.setattr(pixels, "read_radiograph", read_radiograph)
        resumed = prepare(tiny_tree.root, out, SMALL, workers=1)
        assert read == [tiny_tree.image("a")]
        fresh = prepare(tiny_tree.root, tmp_path / "fresh", SMALL, workers=1)
        assert set_files(resumed.folder) == set_files(fresh.folder)
        assert "Right effusion." in resumed.texts

    def test_a_part_goes_on_too(self, tiny_tree, tmp_path):
        def die(done, total):
            if done >= 0.8 * total:
                os.kill(os.getpid(), signal.SIGKILL)

        def part(name, **how):
            prepare_part(tiny_tree.root, tmp_path / name, SMALL, "1/2", workers=1, **how)
            return set_files(tmp_path / name)

        forked(lambda: part("o", progress=die)).join(60)
        assert (tmp_path / "o.partial").exists()
        assert part("o") == part("whole")

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
    return set_files(small_prepared)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class TestTwoAtOnce:
    def test_the_second_is_refused_and_the_first_unharmed(
        self, small_phantom, tmp_path, capsys, monkeypatch
    ):
        monkeypatch.setattr(workspace, "LOCKED", 0.1)
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
    def test_a_full_disk_is_noticed_before_the_work(self, small_phantom, disk, capfd):
        small = disk("size=300k")
        assert run(["prepare", str(small_phantom), str(small / "o"), "--size", "128"]) == 2
        error = capfd.readouterr().err.splitlines()[-1]
        assert "its images need " in error or "No space left" in error
        assert "make room" in error
        assert list(small.iterdir()) == []

    def test_a_disk_with_room_for_one_copy_of_the_rows_is_enough(
        self, small_phantom, tmp_path, disk
    ):
        settings = PrepareSettings(size=128)
        whole = prepare(small_phantom, tmp_path / "whole", settings, workers=1)
        small = disk(f"size={len(whole) * 128**2 * 3 // 2}")
        made = prepare(small_phantom, small / "o", settings, workers=1)
        assert set_files(made.folder) == set_files(whole.folder)

    @pytest.mark.parametrize("limit", [60_000, 80_000])
    def test_a_disk_that_fills_up_later_keeps_what_is_done(
        self, small_phantom, uninterrupted, tmp_path, capsys, limit
    ):
        """The limit on file sizes stands for the disk: it is met in chunks or in ``images.bin``,

        when some rows were moved there from chunks that are no more.
        """
        out = tmp_path / "o"
        with files_of_at_most(limit):
            words = ["prepare", str(small_phantom), str(out), "--size", "32", "--workers", "1"]
            assert run(words) == 2
        error = capsys.readouterr().err
        assert "cannot be written (File too large)" in error
        assert "run the same command again to resume" in error
        assert not out.exists()
        said = []
        resumed = prepare(small_phantom, out, SMALL, workers=1, say=said.append)
        assert not any("were not what" in line for line in said)
        assert set_files(resumed.folder) == uninterrupted
        assert [path.name for path in tmp_path.iterdir()] == ["o"]

    def test_a_read_only_output_is_a_sentence(self, tiny_tree, disk, capsys):
        place = disk("ro")
        assert run(["prepare", str(tiny_tree.root), str(place / "o")]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert "cannot be written" in error
        assert str(place) in error


@pytest.fixture
def disk(tmp_path):
    """A function that mounts a small disk (tmpfs), where that is allowed."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options):
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        if os.geteuid() and options == "ro":
            place.chmod(0o555)
        elif os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small disk is not allowed here")
        return place

    yield mount
    if os.path.ismount(place):
        subprocess.run(["umount", "-l", str(place)], check=True)

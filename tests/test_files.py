"""Files appear whole, with the rights the umask gives, and what the killed left is removed."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from medclip_debias import files
from medclip_debias.errors import UserError
from medclip_debias.files import (
    atomic_file,
    atomic_folder,
    check_guarded,
    check_out,
    exchange,
    json_or_none,
    open_guarded,
    read_bytes,
    read_json,
    read_json_or_none,
    read_json_value,
    remove_leftovers,
    take_back,
    write_json,
    write_text,
)


@pytest.fixture(params=[0o002, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def writing(folder, kind, name):
    """A process in the middle of writing: its number."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        with kind(folder / name) as temporary:
            place = temporary if kind is atomic_file else temporary / "patient.png"
            place.write_bytes(b"half")
            os.write(tell, b".")
            time.sleep(60)
        os._exit(0)
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)
    return child


def kill(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def mode(path):
    return path.stat().st_mode & 0o777


def test_files_and_folders_get_the_rights_of_the_umask(tmp_path, umask):
    from numpy import zeros
    from safetensors.numpy import save_file

    write_text(tmp_path / "a.txt", "a")
    with atomic_folder(tmp_path / "model") as work:
        save_file({"x": zeros(2)}, work / "model.safetensors")
        (work / "inner").mkdir()
        (work / "inner" / "b").write_text("b")
    with atomic_file(tmp_path / "key", private=True) as temporary:
        temporary.write_text("secret")
    assert mode(tmp_path / "key") == 0o600
    for path in [tmp_path / "a.txt", *(tmp_path / "model").rglob("*")]:
        assert mode(path) == (0o777 if path.is_dir() else 0o666) & ~umask, path.name
    assert mode(tmp_path / "model") == 0o777 & ~umask
    tmp_path.chmod(0o2775)
    with atomic_folder(tmp_path / "model"):  # what a group shares stays shared
        pass
    assert (tmp_path / "model").stat().st_mode & 0o2000


@pytest.mark.parametrize("kind", [atomic_file, atomic_folder])
def test_a_killed_writer_is_cleaned_up_and_a_living_one_is_not_touched(tmp_path, kind):
    dead = writing(tmp_path, kind, "heatmaps")
    living = writing(tmp_path, kind, "heatmaps")
    try:
        assert len(hidden(tmp_path)) == 2
        assert remove_leftovers(tmp_path) == 0
        kill(dead)
        assert remove_leftovers(tmp_path) == 1
        (left,) = hidden(tmp_path)
        assert f"-{living}-" in left
    finally:
        kill(living)
    assert remove_leftovers(tmp_path) == 1
    assert hidden(tmp_path) == []


def test_a_users_own_hidden_files_stay(tmp_path):
    mine = [".gitignore", ".heatmaps.original", ".model.20260101", ".results.json.abcdefgh.json"]
    mine += [".heatmaps.part", ".x-1-2-abcdefgh.part"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".model.previous").mkdir()
    (tmp_path / "work").mkdir()
    machine = files.temporary_prefix("m").split(".")[2].partition("-")[0]
    link = tmp_path / "work" / f".m.{machine}-999999999-1-abcdefgh.part"
    link.symlink_to(tmp_path)  # named as a leftover, and not followed
    for folder in (tmp_path, tmp_path / "work"):
        remove_leftovers(folder)
        write_text(folder / ("a" * 250), "a")  # a name of any length
    assert hidden(tmp_path) == sorted([*mine, ".model.previous"])


def test_work_of_another_machine_is_left_for_a_day(tmp_path):
    work = tmp_path / ".heatmaps.00000000-1-2-abcdefgh.part"
    work.mkdir()
    (work / "a.png").write_bytes(b"a")
    assert remove_leftovers(tmp_path) == 0
    old = time.time() - files._FORGOTTEN - 60
    os.utime(work, (old, old))
    assert remove_leftovers(tmp_path) == 0  # its picture is new
    os.utime(work / "a.png", (old, old))
    os.utime(work, (old, old))
    assert remove_leftovers(tmp_path) == 1
    assert hidden(tmp_path) == []


def test_a_number_that_was_given_again_is_not_taken_for_the_writer(tmp_path):
    machine, pid, started = re.fullmatch(
        r"\.a\.(\w+)-(\d+)-(\d+)-", files.temporary_prefix("a")
    ).groups()
    for began, count in ((int(started), 0), (int(started) + 60, 1)):
        (tmp_path / f".a.{machine}-{pid}-{began}-abcdefgh.part").write_bytes(b"")
        assert remove_leftovers(tmp_path) == count


def test_a_folder_whose_exchange_was_cut_off_gets_its_content_back(tmp_path):
    child = os.fork()
    if child == 0:  # pragma: no cover
        with atomic_folder(tmp_path / "model") as work:
            (work / "a").write_text("old")
        whole = type(tmp_path).replace

        def replace(self, target):
            if self.name.endswith(".part"):  # the old folder is aside, the new one not in place
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(self, target)

        type(tmp_path).replace = replace
        with atomic_folder(tmp_path / "model") as work:
            (work / "a").write_text("new")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "model").exists()
    assert remove_leftovers(tmp_path) == 2
    assert (tmp_path / "model" / "a").read_text() == "old"
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("links", [True, False])
def test_what_was_written_first_stays_where_that_is_asked_for(tmp_path, monkeypatch, links):
    def refuse(*_):
        raise OSError(95, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    for text in ("one", "two"):
        with atomic_file(tmp_path / "key", first=True) as temporary:
            temporary.write_text(text)
    assert (tmp_path / "key").read_text() == "one"
    assert not hidden(tmp_path)


# ------------------------------------------------------------------------------------ JSON


def test_json_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": [1, None], "b": "\N{GREEK SMALL LETTER ETA}"})
    assert read_json(path, "unused", keys=("a", "b")) == {"a": [1, None], "b": "\u03b7"}
    write_json(path, [1, 2])
    assert read_json_value(path, "unused") == [1, 2]
    path.write_text('\ufeff{"a": 1}', encoding="utf-8")
    assert read_json(path, "unused", encoding="utf-8-sig") == {"a": 1}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "there is no such file; make it again."),
        (b"{", "cannot be read as JSON (JSONDecodeError); make it again."),
        (b"[" * 100_000, "cannot be read as JSON (RecursionError); make it again."),
        (b"[]", "is not a JSON object; make it again."),
        (b'{"b": 1}', "lacks the key 'a'; make it again."),
        (b'{"a": "' + b"x" * (1 << 20) + b'"}', "is larger than 1 MiB; make it again."),
    ],
)
def test_every_fault_of_a_json_file_is_one_sentence_with_the_remedy(tmp_path, content, sentence):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_json(path, "make it again", keys=("a",), limit=1 << 20)
    assert str(caught.value) == f"{path}: {sentence}"
    # What can be made again is none where it is damaged.
    assert (read_json_or_none(path) is None) == ("as JSON" in sentence or content is None)
    assert json_or_none(b'{"a": [1]}\n') == {"a": [1]}


# ------------------------------------------------------------------------- exchanged folders


def folder_with(path, word):
    path.mkdir()
    (path / "word").write_text(word)
    return path


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_output_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot be written to"):
        check_out(tmp_path / "results")


@pytest.mark.parametrize("old", [None, "old"])
def test_a_finished_folder_takes_the_place_of_the_old_one(tmp_path, old):
    target, retired = tmp_path / "set", tmp_path / "retired"
    if old:
        folder_with(target, old)
    folder_with(retired, "of an earlier kill")
    exchange(folder_with(tmp_path / "new", "new"), target, retired)
    assert (target / "word").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("killed", ["before", "between", "after"])
def test_a_killed_exchange_loses_neither_the_old_nor_the_new(tmp_path, killed):
    target, retired = tmp_path / "set", tmp_path / "retired"
    if killed != "before":
        folder_with(retired, "old")
    if killed != "between":
        folder_with(target, "old" if killed == "before" else "new")
    take_back(target, retired)
    assert (target / "word").read_text() == ("new" if killed == "after" else "old")
    assert not retired.exists()


# --------------------------------------------------------------------------- guarded reading


def _special(folder, kind):
    path = folder / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.close()
    return path


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket"])
@pytest.mark.parametrize("read", [open_guarded, check_guarded, read_json])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind, read):
    path = _special(tmp_path, kind)
    with pytest.raises(
        UserError, match=rf"file: is a {kind}, not a regular file; copy it again\.$"
    ):
        read(path, "copy it again")
    assert read_json_or_none(path) is None


def test_a_file_is_read_to_the_limit_whatever_it_says_of_its_size(tmp_path):
    path = tmp_path / "results.json"
    with path.open("wb") as stream:
        stream.truncate(8 << 30)
    with pytest.raises(UserError, match=r"is larger than 1024 MiB; make it again\.$"):
        read_json(path, "make it again")
    with pytest.raises(UserError, match="is larger than 7 bytes"):
        open_guarded(path, "make it again", limit=7)
    size = len(Path("/proc/self/status").read_bytes())
    assert read_bytes(Path("/proc/self/status"), "", limit=size + 4096)
    with pytest.raises(UserError, match="is larger than 10 bytes"):
        read_bytes(Path("/proc/self/status"), "", limit=10)


def test_links_stay_inside_the_folder_that_came_from_outside(tmp_path):
    folder = tmp_path / "model"
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "1").write_text('{"a": 1}')
    (tmp_path / "secret.json").write_text('{"a": 2}')
    (folder / "inside.json").symlink_to("blobs/1")
    (folder / "outside.json").symlink_to("../secret.json")
    (folder / "nowhere.json").symlink_to("none.json")
    (folder / "circle.json").symlink_to("circle.json")
    (folder / "above").symlink_to("..")
    assert read_json(folder / "inside.json", "x", folder=folder) == {"a": 1}
    assert read_json(folder / "outside.json", "x") == {"a": 2}  # a link of the user's own
    for name in ("outside.json", "above/secret.json"):
        with pytest.raises(UserError, match="is a link out of its folder, which is not followed"):
            read_json(folder / name, "copy the file", folder=folder)
    with pytest.raises(UserError, match="there is no such file"):
        read_json(folder / "nowhere.json", "x", folder=folder)
    with pytest.raises(UserError, match=r"cannot be read \(OSError\)"):
        read_json(folder / "circle.json", "x", folder=folder)
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0f"  # of the hub's cache
    snapshot.mkdir(parents=True)
    for name in ("models--a--b", "models--c--d"):
        (tmp_path / name / "blobs").mkdir(parents=True)
        (tmp_path / name / "blobs" / "1").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    (snapshot / "other.json").symlink_to("../../../models--c--d/blobs/1")
    assert read_json(snapshot / "config.json", "x", folder=snapshot) == {}
    with pytest.raises(UserError, match="link out of its folder"):
        read_json(snapshot / "other.json", "x", folder=snapshot)

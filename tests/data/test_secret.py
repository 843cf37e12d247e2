"""The secret of a prepared set: generated once, kept when the set is written again, private."""

import os
import stat
from threading import Thread

import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import merge, prepare, prepare_part
from medclip_debias.data.secret import FILE, read_secret
from medclip_debias.errors import UserError

SMALL = PrepareSettings(size=32)


def test_a_set_has_one_that_only_its_owner_can_read_and_that_stays(tiny_tree, tmp_path):
    """When the set is made again; and it comes to one from before."""
    out = tmp_path / "o"
    prepare(tiny_tree.root, out, SMALL, workers=1)
    before = (out / FILE).read_bytes()
    for how in ({"update": True}, {"overwrite": True}, {}):
        prepare(tiny_tree.root, out, SMALL, workers=1, **how)
        assert (out / FILE).read_bytes() == before
        assert stat.S_IMODE((out / FILE).stat().st_mode) == 0o600
    secret = read_secret(out)
    assert len(secret) == 32
    (out / FILE).unlink()
    prepare(tiny_tree.root, out, SMALL, workers=1)
    assert read_secret(out) != secret


def test_a_merged_set_has_one_and_keeps_it(tiny_tree, tmp_path):
    parts = [tmp_path / "1", tmp_path / "2"]
    for number, part in enumerate(parts, start=1):
        prepare_part(tiny_tree.root, part, SMALL, f"{number}/2", workers=1)
        assert not (part / FILE).exists()
    merge(parts, tmp_path / "o")
    before = read_secret(tmp_path / "o")
    merge(parts, tmp_path / "o", overwrite=True)
    assert read_secret(tmp_path / "o") == before


def test_a_set_from_before_gets_one_on_demand_and_all_who_ask_at_once_get_the_same(tmp_path):
    found = []
    threads = [Thread(target=lambda: found.append(read_secret(tmp_path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_read_only_set_from_before_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*_args, **_more):
        raise OSError(30, os.strerror(30))  # root, who runs tests too, may write anywhere

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UserError, match=r"items\.key: cannot be read or written .*'prepare'"):
        read_secret(tmp_path)


@pytest.mark.parametrize("content", [b"00ff\n", b"\xff" * 64])
def test_a_damaged_one_is_refused(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        read_secret(tmp_path)

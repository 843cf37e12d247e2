"""`PREPARE_VERSION` says which code made a set: it goes up with any change of what is made."""

import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import chunks, prepare
from medclip_debias.errors import UserError

SMALL = PrepareSettings(size=32)


def test_what_this_version_makes_of_the_tiny_tree(tiny_tree, tmp_path):
    """If this fails, code or a library gives other pixels, sentences, labels or boxes.

    Raise `PREPARE_VERSION` then, so that work of the code before is not mixed in, and put the new
    hash here.
    """
    made = prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1)
    assert (chunks.PREPARE_VERSION, made.content_hash[:16]) == (1, "93959dad72879595")


def test_another_version_starts_over_and_does_not_take_a_finished_set_for_its_own(
    tiny_tree, tmp_path, monkeypatch
):
    out, said = tmp_path / "o", []

    def stop(done, total):
        if done >= 4:  # reports, and no images
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tiny_tree.root, out, SMALL, workers=1, progress=stop)
    with monkeypatch.context() as patch:
        patch.setattr(chunks, "PREPARE_VERSION", -1)
        prepare(tiny_tree.root, out, SMALL, workers=1, say=said.append)
    assert any("another version; starting over" in line for line in said)
    with pytest.raises(UserError, match="is not empty"):
        prepare(tiny_tree.root, out, SMALL, workers=1)

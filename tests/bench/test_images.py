"""Archives below a folder: found by name or form, one place for a card, the missing one named."""

from __future__ import annotations

import shutil

import pytest

from medclip_debias.bench.card import Card, cards_of
from medclip_debias.bench.images import Archives
from medclip_debias.errors import UserError
from phantom_layouts import ArchiveSettings, write_archive


def card(archive: str, *folders: str, synthetic: bool = True) -> Card:
    data = {"archive": archive, "folders": folders, "obtain": "the archive's page"}
    content = {"name": "a/b", "version": 1, "kind": "zero_shot", "title": "t", "about": "a"}
    return Card.model_validate(
        content | {"data": data | {"synthetic": synthetic}, "metrics": ["zero_shot.mean_auc"]}
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("archives")
    for layout in ("siim", "mimic_cxr"):
        settings = ArchiveSettings(studies=20, seed=1, layout=layout, min_side=64, max_side=72)
        write_archive(root / f"some_{layout}", settings, 1)
    (root / "readme.txt").write_text("nothing to see")
    return root


def test_an_archive_is_found_below_the_root_and_as_the_root(root, tmp_path):
    archives = Archives(root)
    for layout in ("siim", "mimic_cxr", "siim"):
        assert archives.of(card(layout)) == root / f"some_{layout}"
        assert Archives(root / f"some_{layout}").of(card(layout)) == root / f"some_{layout}"
    for name in ("aaa", "mine"):
        shutil.copytree(root / "some_siim", tmp_path / name)
    assert Archives(tmp_path).of(card("siim")) == tmp_path / "aaa"
    # A name that the card gives goes first.
    assert Archives(tmp_path).of(card("siim", "other", "mine")) == tmp_path / "mine"


def test_what_is_missing_is_named_with_where_to_get_it(root):
    with pytest.raises(UserError, match=r"no VinDr-CXR here; get it: the archive's page"):
        Archives(root).of(card("vindr_cxr", synthetic=False))


def test_cards_are_asked_for_by_name_pattern_and_file(tmp_path):
    everything, named = cards_of("all")
    assert everything
    assert not named
    found, named = cards_of("phantom/zero-shot@2")
    assert [one.full_name for one in found] == list(named) == ["phantom/zero-shot@2"]
    some, named = cards_of("phantom/*")
    assert {one.full_name for one in found} <= {one.full_name for one in some}
    assert not named
    for words, sentence in {
        "phantom/zero-shto": "did you mean",
        "nothing/*": "No task card fits",
        "phantom/zero-shot@9": "at version 2 here, not 9",
        " , ": "names no card",
        str(tmp_path / "no.yaml"): "no such file",
    }.items():
        with pytest.raises(UserError, match=sentence):
            cards_of(words)

"""Which files are a phantom's: all that lies below its truth, and no copy elsewhere."""

from __future__ import annotations

import json

from medclip_debias.data.synthetic import all_of_phantoms, is_phantom


def test_files_below_a_phantom_are_generated_and_copies_are_not_known_to_be(tmp_path):
    deep = tmp_path / "phantom" / "files" / "p10" / "a.jpg"
    other = tmp_path / "b.jpg"
    deep.parent.mkdir(parents=True)
    (tmp_path / "phantom" / "truth").mkdir()
    (tmp_path / "phantom" / "truth" / "meta.json").write_text(
        json.dumps({"settings_hash": "x", "classes": []})
    )
    for file in (deep, other):
        file.write_bytes(b"")
    assert is_phantom(tmp_path / "phantom")
    assert not is_phantom(tmp_path)
    assert all_of_phantoms([deep])
    assert not all_of_phantoms([deep, other])
    assert not all_of_phantoms([other])
    assert not all_of_phantoms([])

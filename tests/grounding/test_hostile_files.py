"""Lists and index files of a stranger: pipes, devices and links out of a folder are refused."""

from __future__ import annotations

import os

import pytest

from medclip_debias.errors import UserError
from medclip_debias.grounding.search.landmarks import Landmarks
from medclip_debias.grounding.sentences import read_sentences
from medclip_debias.language.class_probability import eta_table


@pytest.mark.parametrize(
    "read", [read_sentences, Landmarks.load, lambda path: eta_table(path, ["No edema."])]
)
def test_pipes_are_refused_and_not_waited_for(read, tmp_path):
    os.mkfifo(tmp_path / "given")
    with pytest.raises(UserError, match="is a pipe, not a regular file"):
        read(tmp_path / "given")


def test_an_index_does_not_lead_out_of_its_folder(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "landmarks.safetensors").write_bytes(b"")
    (tmp_path / "index" / "landmarks.safetensors").symlink_to("../landmarks.safetensors")
    with pytest.raises(UserError, match="is a link out of its folder"):
        Landmarks.load(tmp_path / "index" / "landmarks.safetensors")

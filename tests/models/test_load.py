"""What a model folder says of its images is what the loaded model says."""

from __future__ import annotations

import json

import pytest

from medclip_debias.config import PrepareSettings, Preprocessing
from medclip_debias.errors import UserError
from medclip_debias.models.load import expected_images
from medclip_debias.models.peers.settings import PeerPreprocessing

OWN = Preprocessing(prepare=PrepareSettings(size=96, clip=(0, 100), fit="crop"), input_size=80)


def write(folder, name, content):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))
    return folder


def test_own_models_and_peers_say_how_their_images_are_prepared(tmp_path):
    folder = write(tmp_path / "own", "config.json", {"preprocessing": OWN.model_dump(mode="json")})
    assert expected_images(folder) == OWN
    peer = PeerPreprocessing(
        prepare=PrepareSettings(size=256, resample="bicubic"), input_size=224, network_size=448
    )
    content = {"preprocessing": peer.model_dump(mode="json")}  # JSON is YAML
    assert expected_images(write(tmp_path / "peer", "peer.yaml", content)) == peer


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"model_type": "bert"}, "does not say how images are prepared"),
        ({"preprocessing": {"input_size": 4096}}, "'preprocessing' is wrong: input_size 4096"),
        ({"preprocessing": {"prepare": {"sise": 3}}}, "unknown setting 'preprocessing.prepare.sis"),
        (["a"], "is not a JSON object"),
    ],
)
def test_a_folder_that_is_no_model_is_one_sentence(tmp_path, content, sentence):
    with pytest.raises(UserError, match=sentence):
        expected_images(write(tmp_path / "own", "config.json", content))


def test_a_run_folder_names_the_model_in_it(tmp_path):
    write(tmp_path, "settings.json", {})
    with pytest.raises(UserError, match=r"no config\.json or peer\.yaml\.$"):
        expected_images(tmp_path)
    write(tmp_path / "model", "config.json", {})
    with pytest.raises(UserError, match=r"model is one\.$"):
        expected_images(tmp_path)

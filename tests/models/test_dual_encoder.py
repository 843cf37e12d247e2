"""The model folder: what is saved is what is loaded, and nothing else fits."""

from __future__ import annotations

import shutil

import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.models.checkpoint import uninitialised
from medclip_debias.models.dual_encoder import DualEncoder
from tests.helpers.small_models import dual_encoder, edit_json, write_bert

SENTENCES = ["No pleural effusions", "left", "No pleural effusions"]


@pytest.fixture
def model(texts):
    return dual_encoder(texts, similarity={"non_local": "self_attention"})


def pixels(side=40):
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (3, side, side), generator=g, dtype=torch.uint8)


@torch.no_grad()
def scores(model):
    side = model.preprocessing.prepare.size
    return model.score(model.encode_images(pixels(side)), model.encode_sentences(SENTENCES))


def test_the_hash_names_weights_and_preprocessing_and_a_revision_is_the_one_asked(model, tmp_path):
    """In the hub's own cache on the disk, without a network."""
    repository = tmp_path / "models--group--model"
    (repository / "refs").mkdir(parents=True)
    places = {name: repository / "snapshots" / (name[0] * 40) for name in ("main", "older")}
    for name, place in places.items():
        (repository / "refs" / name).write_text(place.name)
        with torch.no_grad():
            model.image_projection.bias.add_(1)
        model.save(place)
    model.provenance = {"step": 3}
    model.save(tmp_path / "again")
    hashes = {name: DualEncoder.load(place).content_hash for name, place in places.items()}
    assert hashes["main"] != hashes["older"] == DualEncoder.load(tmp_path / "again").content_hash
    config = edit_json(tmp_path / "again" / "config.json")
    other = config["preprocessing"] | {"mean": 0.4}
    edit_json(tmp_path / "again" / "config.json", preprocessing=other)
    assert DualEncoder.load(tmp_path / "again", check=False).content_hash != hashes["older"]
    there = {"cache_dir": tmp_path, "local_files_only": True}
    for revision in (None, "older"):
        found = DualEncoder.from_pretrained("group/model", revision=revision, **there)
        assert found.content_hash == hashes[revision or "main"]


@torch.no_grad()
def test_embeddings_are_unit_vectors_on_the_grid_and_alike_in_any_company(model):
    regions = model.encode_images(pixels()).regions
    sentences = model.encode_sentences(SENTENCES)
    assert regions.shape == (3, model.grid.rows * model.grid.columns, 8)
    torch.testing.assert_close(regions.norm(dim=-1), torch.ones(3, 16))
    torch.testing.assert_close(sentences.norm(dim=-1), torch.ones(3))
    assert torch.equal(sentences[0], sentences[2])
    together = model.encode_sentences(["left", "no no no no pleural effusions", "no"])
    torch.testing.assert_close(together[2:], model.encode_sentences("no"), rtol=1e-4, atol=1e-5)
    assert model.encode_sentences([]).shape == (0, 8)
    with pytest.raises(UserError, match="sentence 2 is of type float"):
        model.encode_sentences(["left", float("nan")])
    with pytest.raises(UserError, match=r"nothing \(None\)"):
        model.encode_sentences(None)


def test_a_prepared_image_is_cropped_at_its_centre_and_normalised(model):
    image = torch.zeros(1, 40, 40, dtype=torch.uint8)
    image[0, 4, 4] = 255
    x = model.normalise(image)
    assert x.shape == (1, 1, 32, 32)
    assert (x[0, 0, 0, 0].item(), x[0, 0, 5, 5].item()) == pytest.approx((2, -2))
    with pytest.raises(ValueError, match="expected uint8 images"):
        model.normalise(torch.zeros(1, 30, 30, dtype=torch.uint8))


def test_a_folder_of_another_format_is_named(saved_model, tmp_path):
    folder = shutil.copytree(saved_model, tmp_path / "model")
    edit_json(folder / "config.json", format=99)
    with pytest.raises(UserError, match="format 99"):
        DualEncoder.load(folder)


def test_a_sentence_limit_beyond_the_language_model_is_refused(texts):
    with pytest.raises(UserError, match="max_tokens"):
        dual_encoder(texts, text={"folder": str(texts), "max_tokens": 64})


@pytest.mark.parametrize(("arch", "side"), [("resnet_small", 64), ("vit_tiny_scratch", 56)])
def test_what_is_loaded_is_the_files_and_nothing_is_left_of_the_memory(arch, side, tmp_path):
    """Memory that nobody filled is filled with NaN here, so that it is seen."""
    texts = write_bert(tmp_path / "texts", projection=6)[0]
    model = dual_encoder(texts, arch, side, side)
    model.prompts = {"mine": {"x": 1}}
    model.image_encoder.to(memory_format=torch.channels_last)  # as a loaded one has it
    model.save(tmp_path / "model")
    shutil.rmtree(texts)  # a saved model loads without the folders that it was built from
    torch.use_deterministic_algorithms(True)
    try:
        loaded = DualEncoder.load(tmp_path / "model", check=False)
        with uninitialised():
            assert torch.nn.Linear(3, 3).weight.isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)
    tensors = [*loaded.parameters(), *loaded.buffers()]  # also buffers that no file holds
    assert all(value.isfinite().all() for value in tensors)
    kept = model.state_dict()
    assert loaded.state_dict().keys() == kept.keys()
    assert all(torch.equal(value, kept[name]) for name, value in loaded.state_dict().items())
    assert (loaded.preprocessing, loaded.prompts) == (model.preprocessing, model.prompts)
    assert torch.equal(scores(loaded), scores(model))
    assert torch.equal(scores(DualEncoder.from_pretrained(str(tmp_path / "model"))), scores(model))

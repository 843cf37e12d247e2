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
    return model.score(model.encode_images(pixels()), model.encode_sentences(SENTENCES))


def test_a_saved_model_loads_without_the_folders_it_was_built_from(tmp_path):
    texts = write_bert(tmp_path / "texts", projection=6)[0]
    model = dual_encoder(texts)
    model.prompts = {"mine": {"x": 1}}
    model.image_encoder.to(memory_format=torch.channels_last)  # as a loaded one has it
    expected = scores(model)
    model.save(tmp_path / "model")
    shutil.rmtree(texts)
    loaded = DualEncoder.load(tmp_path / "model")
    assert torch.equal(scores(loaded), expected)
    assert loaded.preprocessing == model.preprocessing
    assert loaded.prompts == {"mine": {"x": 1}}
    assert torch.equal(scores(DualEncoder.from_pretrained(str(tmp_path / "model"))), expected)


def test_a_revision_on_the_hub_is_the_one_that_is_loaded(model, tmp_path):
    """In the hub's own cache on the disk, without a network."""
    repository = tmp_path / "models--group--model"
    (repository / "refs").mkdir(parents=True)
    hashes = {}
    for name in ("main", "older"):
        commit = name[0] * 40
        (repository / "refs" / name).write_text(commit)
        with torch.no_grad():
            model.image_projection.bias.add_(1)
        model.save(repository / "snapshots" / commit)
        hashes[name] = DualEncoder.load(repository / "snapshots" / commit).content_hash
    there = {"cache_dir": tmp_path, "local_files_only": True}
    assert hashes["main"] != hashes["older"]
    assert DualEncoder.from_pretrained("group/model", **there).content_hash == hashes["main"]
    older = DualEncoder.from_pretrained("group/model", revision="older", **there)
    assert older.content_hash == hashes["older"]


def test_the_hash_names_weights_and_preprocessing_but_not_provenance(model, tmp_path):
    model.save(tmp_path / "a")
    model.provenance = {"step": 3}
    model.save(tmp_path / "b")
    first = DualEncoder.load(tmp_path / "a").content_hash
    assert DualEncoder.load(tmp_path / "b").content_hash == first
    config = edit_json(tmp_path / "b" / "config.json")
    edit_json(tmp_path / "b" / "config.json", preprocessing=config["preprocessing"] | {"mean": 0.4})
    assert DualEncoder.load(tmp_path / "b", check=False).content_hash != first


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


def test_folders_that_hold_no_whole_model_are_named(saved_model, tmp_path):
    with pytest.raises(UserError, match=r"config\.json is missing"):
        DualEncoder.load(tmp_path)
    folder = shutil.copytree(saved_model, tmp_path / "model")
    config = edit_json(folder / "config.json")
    edit_json(
        folder / "config.json",
        architecture=config["architecture"] | {"image": {"arch": "resnet18"}},
    )
    with pytest.raises(UserError, match="another architecture"):
        DualEncoder.load(folder)
    (folder / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(UserError):
        DualEncoder.load(folder)
    edit_json(folder / "config.json", format=99)
    with pytest.raises(UserError, match="format 99"):
        DualEncoder.load(folder)


def test_a_sentence_limit_beyond_the_language_model_is_refused(texts):
    with pytest.raises(UserError, match="max_tokens"):
        dual_encoder(texts, text={"folder": str(texts), "max_tokens": 64})


@pytest.mark.parametrize(("arch", "side"), [("resnet_small", 64), ("vit_tiny_scratch", 56)])
def test_what_is_loaded_is_the_files_and_nothing_is_left_of_the_memory(arch, side, texts, tmp_path):
    """Memory that nobody filled is filled with NaN here, so that it is seen."""
    model = dual_encoder(texts, arch, side, side)
    model.save(tmp_path / "model")
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

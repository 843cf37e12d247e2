"""`md.load`: what a script gets is what the pipeline computes, and no input is misread."""

from __future__ import annotations

import doctest
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from scipy.ndimage import label

import medclip_debias as md
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.secret import read_secret
from medclip_debias.errors import UserError
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.item_tables import item_keys
from medclip_debias.front import model as module
from medclip_debias.front.model import Model, SyntheticModelWarning
from medclip_debias.grounding.files import GroundOptions, ground_files
from medclip_debias.grounding.settings import SuppressionRule
from medclip_debias.grounding.suppression import save_rule
from medclip_debias.models.peers.families import published_preprocessing
from tests.helpers.small_models import make_peer

LEFT, NONE = "Left pleural effusion.", "No pleural effusion."


@pytest.fixture(scope="module")
def evaluated(files, model_folder, tmp_path_factory):
    """A set of `files` by `md.prepare`, and the run that ``evaluate`` made of it."""
    folder = tmp_path_factory.mktemp("evaluated")
    labels = [number % 2 for number in range(len(files))]
    table = {"image": [str(path) for path in files], "report": [LEFT] * len(files)}
    table |= {"split": ["test"] * len(files), "Edema": labels}
    pd.DataFrame(table).to_csv(folder / "manifest.csv", index=False)
    source = folder / "manifest.csv"
    data = md.prepare(source, folder / "set", for_model=model_folder, workers=1)
    evaluate(model_folder, data.folder, folder / "run", bootstrap=20, heatmaps=0, device="cpu")
    return data, folder / "run"


def test_files_have_the_scores_that_evaluate_gives_them(evaluated, files, model):
    data, run = evaluated
    items = pd.read_parquet(run / "items" / "zero_shot.parquet").set_index("item")
    keys = item_keys(read_secret(data.folder), data.content_hash, data.images["image_id"])
    found = model.zero_shot(files, batch_size=3)
    assert list(found.columns) == list(load_prompts("chex5").classes)
    assert list(found.index) == [str(path) for path in files]
    # The set is in the manifest's order.
    assert [Path(name).stem for name in data.images["image_id"]] == [p.stem for p in files]
    scale = model.network.learned_scale
    logit = np.log(found / (1 - found)) / scale
    for name in found.columns:
        expected = items.loc[keys, f"score.{name}"].to_numpy()
        np.testing.assert_allclose(logit[name], expected, atol=1e-6)
        np.testing.assert_allclose(found[name], 1 / (1 + np.exp(-scale * expected)), atol=1e-6)


def test_files_have_the_maps_that_ground_gives_them(files, model, tmp_path):
    files = [files[1], files[2], files[5], files[7]]
    plain = GroundOptions(style={"legend": False})  # pictures that nobody looks at here
    result = ground_files(model.network, files, [LEFT, NONE], tmp_path / "maps", plain)
    scores = model.scores(files, [LEFT, NONE])
    for path, entry in zip(files, result["images"], strict=True):
        maps = model.heatmaps(str(path), [LEFT, NONE])
        assert maps.values.shape == (2, entry["height"], entry["width"])
        assert maps.image.shape == maps.values.shape[1:]
        for row in entry["sentences"]:
            expected = np.load(row["map"], allow_pickle=False)
            np.testing.assert_allclose(maps[row["text"]], expected, atol=1e-6)
            assert scores.loc[str(path), row["text"]] == pytest.approx(row["score"], abs=1e-6)
        rows = entry["sentences"]
        np.testing.assert_allclose(maps.scores, [row["score"] for row in rows], atol=1e-6)
        lowest, highest = min(r["lowest"] for r in rows), max(r["highest"] for r in rows)
        assert maps.limits == pytest.approx((lowest, highest), abs=1e-6)
        assert maps.kind == "cosine"


def test_results_are_the_numbers_of_results_json(evaluated):
    _, run = evaluated
    content = json.loads((run / "results.json").read_text())
    table = md.results(run)
    assert set(table["run"]) == {str(run)}
    stored = [row for row in content["metrics"] if row["group"] is None]
    columns = ["metric", "value", "low", "high", "n"]
    pd.testing.assert_frame_equal(table[columns], pd.DataFrame(stored)[columns], check_dtype=False)
    assert len(md.results(run, groups=True)) >= len(table)
    assert table.attrs["skipped"][str(run)] == content["skipped"]
    assert table.attrs["notes"][str(run)] == content.get("notes", [])
    pd.testing.assert_frame_equal(md.results([run / "results.json"]).iloc[:, 1:], table.iloc[:, 1:])
    with pytest.raises(UserError, match="given twice"):
        md.results([run, str(run)])
    with pytest.raises(UserError, match="no such folder"):
        md.results(run / "nowhere")


# ------------------------------------------------------------------------- forms of an image


def forms(grey, path):
    """The same picture as it may be handed in."""
    return {
        "Path": path,
        "str": str(path),
        "Radiograph": md.read_radiograph(str(path)),
        "uint8": grey,
        "int64": grey.astype(np.int64) - 40,
        "uint16": grey.astype(np.uint16) * 257,
        "0..1": (grey / 255).astype(np.float64),
        "colours": np.stack([grey] * 3, axis=-1),
        "deep colours": np.stack([grey.astype(np.uint16) * 257] * 3, axis=-1),
        "alpha": np.dstack([grey, grey, grey, np.full_like(grey, 9)]),
        "one channel": grey[..., None],
        "Pillow": Image.fromarray(grey),
        "tensor": torch.from_numpy(grey),
    }


def test_one_picture_in_any_form_has_one_score(model, grey, tmp_path):
    path = tmp_path / "picture.png"
    Image.fromarray(grey).save(path)
    found = forms(grey, path)
    scores = model.scores(list(found.values()), [LEFT, NONE]).to_numpy()
    np.testing.assert_allclose(scores, np.tile(scores[0], (len(found), 1)), atol=1e-6)
    alone = {name: model.scores(form, LEFT).to_numpy() for name, form in found.items()}
    assert {value.shape for value in alone.values()} == {(1, 1)}
    assert np.ptp(list(alone.values())) < 1e-6
    assert np.ptp(model.scores([grey, 255 - grey], LEFT).to_numpy()) > 1e-4


def test_what_a_file_holds_is_read_as_the_file(model, files):
    """Data sets of pydicom, deep images, colours by luminance, a photograph that is turned."""
    from pydicom import dcmread

    memory = [dcmread(path) if path.suffix == ".dcm" else Image.open(path) for path in files]
    found = model.scores([*files, *memory], [LEFT, NONE]).to_numpy()
    np.testing.assert_array_equal(found[: len(files)], found[len(files) :])
    assert np.ptp(found[:3], axis=0).min() > 1e-5
    by_name = {path.name: content for path, content in zip(files, memory, strict=True)}
    turned, colours = by_name["f.jpg"], np.asarray(by_name["g.png"])
    assert model.heatmaps(turned, LEFT).image.shape == (turned.width, turned.height)
    assert np.ptp(model.scores([colours, colours[..., ::-1]], [LEFT]).to_numpy()) > 1e-6
    broken = dcmread(files[0])
    del broken.file_meta
    with pytest.raises(UserError, match="image 0: this data set is not a complete DICOM"):
        model.scores(broken, LEFT)


def test_a_folder_is_all_its_images_and_says_what_it_left_aside(model, files, tmp_path):
    (tmp_path / "sub").mkdir()
    for path in files[:2]:
        (tmp_path / "sub" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "notes.csv").write_text("x")
    with pytest.warns(UserWarning, match=r"skipped 1 \.csv"):
        found = model.encode_images(tmp_path)
    np.testing.assert_allclose(found, model.encode_images(files[:2]), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


BAD_IMAGES = {
    "list of several": (np.zeros((4, 30, 30)), "several images are a list"),
    "channels first": (np.zeros((3, 30, 30)), "Channels come last"),
    "bool": (np.eye(30, dtype=bool), "no grey levels"),
    "one value": (np.full((30, 30), 7), "single grey value"),
    "NaN": (np.where(np.eye(30) > 0, np.nan, np.eye(30)), "not numbers"),
    "deep colours": (np.zeros((30, 30, 3), dtype=np.int32), "uint16 or floats"),
    "nothing": (None, "NoneType is not an image"),
    "mapping": ({"a": "a.png"}, "not a mapping"),
    "bilevel": (Image.new("1", (30, 30)), "black and white"),
    "missing": ("nowhere.png", "no such file"),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_what_is_no_radiograph_is_refused_in_one_sentence(model, case):
    bad, why = BAD_IMAGES[case]
    with pytest.raises(UserError, match=why) as error:
        model.zero_shot(bad)
    assert "\n" not in str(error.value)


def test_a_radiograph_of_another_window_is_refused(model, files):
    read = md.read_radiograph(files[1], window="none")
    with pytest.raises(UserError, match="image 1: was read from DICOM with window='none'"):
        model.zero_shot([files[1], read])
    same = model.scores([files[1], md.read_radiograph(files[1])], LEFT).to_numpy()
    assert same[0] == same[1]


# ----------------------------------------------------------------------- sentences, prompts


def test_a_string_is_one_text(model):
    found = model.encode_texts(LEFT)
    assert found.shape == (1, model.dim)
    np.testing.assert_array_equal(found, model.encode_texts([LEFT]))
    assert model.encode_texts([LEFT, NONE, LEFT]).shape == (3, model.dim)
    for bad in ([], [LEFT, " "], [LEFT, None], {"a": 1}, b"Left."):
        with pytest.raises(UserError):
            model.encode_texts(bad)


def test_sentences_in_a_list_share_the_probability(model, files):
    texts = [LEFT, NONE, "Pulmonary edema"]
    found = model.zero_shot(files, texts)
    scores = model.scores(files, texts).to_numpy().astype(np.float64)
    powers = np.exp(model.network.learned_scale * scores)
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), atol=1e-9)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    sharp = model.zero_shot(files, texts, scale=1e6).to_numpy()
    assert np.isfinite(sharp).all()
    np.testing.assert_array_equal(sharp.argmax(axis=1), scores.argmax(axis=1))


def test_a_side_of_several_sentences_counts_by_their_mean(model, files):
    sides = {"Effusion": ([LEFT, "Pulmonary edema"], NONE), "Other": (LEFT, [NONE])}
    found = model.zero_shot(files, sides, scale=5)
    spelt = {name: dict(zip(("positive", "negative"), s, strict=True)) for name, s in sides.items()}
    pd.testing.assert_frame_equal(found, model.zero_shot(files, spelt, scale=5))
    left, edema, none = model.scores(files, [LEFT, "Pulmonary edema", NONE]).to_numpy().T
    logit = 5 * ((left + edema) / 2 - none.astype(np.float64))
    np.testing.assert_allclose(found["Effusion"], 1 / (1 + np.exp(-logit)), atol=1e-6)
    named = model.zero_shot(files, "chex5")
    pd.testing.assert_frame_equal(named, model.zero_shot(files))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sentences that a model of 16 tokens cuts
        columns = model.zero_shot(files[:1], "openi").columns
    assert list(columns) == list(load_prompts("openi").classes)


@pytest.mark.parametrize(
    ("prompts", "why"),
    [
        ("chex6", "did you mean 'chex5'"),
        ("Left effusion.", "A sentence goes into a list"),
        ("nowhere.yaml", "nowhere.yaml"),
        ([LEFT], "always 1"),
        ([LEFT, LEFT], "given twice"),
        ([LEFT, ""], "is empty"),
        ({"Effusion": LEFT}, "two sides"),
        ({"Effusion": (LEFT, [])}, "negative"),
        ({}, "classes"),
    ],
)
def test_prompts_that_ask_nothing_are_refused(model, grey, prompts, why):
    with pytest.raises(UserError, match=why):
        model.zero_shot(grey, prompts)


def test_no_image_gives_an_empty_table_and_heatmaps_take_one(model, grey):
    assert model.zero_shot([]).shape == (0, 5)
    assert model.zero_shot([], [LEFT, NONE]).shape == (0, 2)
    assert model.encode_images([]).shape == (0, model.dim)
    maps = model.heatmaps(grey, LEFT)
    assert len(maps) == 1
    np.testing.assert_array_equal(maps[LEFT], maps[0])
    with pytest.raises(KeyError):
        maps[NONE]
    with pytest.raises(UserError, match="takes one image, got 2"):
        model.heatmaps([grey, grey], LEFT)


def test_boxes_are_those_of_the_maps_and_none_for_what_is_not_in_the_image(model, grey, tmp_path):
    with pytest.raises(UserError, match=r"suppression\.json: is missing"):
        model.boxes(grey, [LEFT])
    plain = model.boxes(grey, [LEFT, NONE], suppress=False)
    heat = model.heatmaps(grey, [LEFT])[LEFT]
    low, high = np.nanmin(heat), np.nanmax(heat)
    _, count = label(heat >= low + 0.5 * (high - low), structure=np.ones((3, 3)))
    assert (plain["sentence"] == LEFT).sum() == count
    assert plain["confidence"].isna().all()
    rule = SuppressionRule(
        evidence="score", threshold=-1.0, slope=2.0, model_hash=model.network.content_hash
    )
    save_rule(tmp_path, rule)
    kept = Model(model.network, str(tmp_path)).boxes(grey, [LEFT, NONE])
    assert set(kept["sentence"]) == {LEFT}  # the other denies
    score = float(model.scores(grey, LEFT).iloc[0, 0])
    assert kept["confidence"].max() == pytest.approx(1 / (1 + np.exp(-2 * score)), abs=1e-5)
    save_rule(tmp_path, rule.model_copy(update={"threshold": 1.1}))
    none = Model(model.network, str(tmp_path)).boxes(grey, [LEFT])
    assert len(none) == 0
    assert list(none.columns) == list(plain.columns)


def test_a_sentence_that_is_cut_is_named_by_its_number(model, grey):
    with pytest.warns(UserWarning, match="Sentence 2 has .* tokens") as found:
        model.scores(grey, [LEFT, "effusion " * 40])
    assert found[0].filename == __file__


# -------------------------------------------------------------------------------- the model


def test_nothing_is_recorded_for_gradients(model, grey, monkeypatch):
    seen = []
    for name in ("encode_images", "encode_sentences"):
        original = getattr(model.network, name)

        def watched(*words, original=original):
            seen.append(torch.is_grad_enabled())
            return original(*words)

        monkeypatch.setattr(model.network, name, watched)
    model.zero_shot(grey)
    model.heatmaps(grey, LEFT)
    model.encode_images(grey)
    model.encode_texts(LEFT)
    assert len(seen) == 6
    assert not any(seen)
    assert torch.is_grad_enabled()


def test_an_imported_peer_loads_and_needs_a_scale(language_model, grey, tmp_path):
    sizes = {"image_size": 64, "patch_size": 16, "width": 32, "layers": 1, "head_width": 16}
    content = {"dim": 6, "image": {"kind": "open_clip", "config": sizes}}
    head, text = {"text.head.0.weight": (10, 1)}, {"pooling": "mlp", "token": "mean"}
    how = published_preprocessing("open_clip", 64)
    make_peer(language_model, how, head, text, **content).save(tmp_path / "p")
    peer = md.load(tmp_path / "p", device="cpu")
    with pytest.raises(UserError, match="give scale="):
        peer.zero_shot(grey)
    scores = peer.scores(grey, [LEFT, NONE]).to_numpy().astype(np.float64)
    found = peer.zero_shot(grey, {"E": (LEFT, NONE)}, scale=100)["E"].item()
    assert found == pytest.approx(1 / (1 + np.exp(-100 * (scores[0, 0] - scores[0, 1]))))
    vectors = peer.encode_images(grey) @ peer.encode_texts([LEFT, NONE]).T
    np.testing.assert_allclose(vectors, scores, atol=1e-6)
    assert peer.network.encode_sentences(LEFT).shape == (1, 6)


def test_a_model_of_phantoms_warns_once_and_not_of_a_phantom(
    make_network, files, grey, phantom_tree
):
    own = next((phantom_tree / "files").rglob("*.dcm"))
    for calls, words in (("zero_shot", []), ("encode_images", []), ("heatmaps", [LEFT])):
        model = Model(make_network(kind="mimic_cxr", synthetic=True))
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntheticModelWarning)
            getattr(model, calls)(own, *words)
            model.encode_texts(LEFT)
        with pytest.warns(SyntheticModelWarning, match="synthetic images") as found:
            getattr(model, calls)(files[0], *words)
        assert [warning.filename for warning in found] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntheticModelWarning)
            getattr(model, calls)(grey, *words)
            Model(make_network(kind="mimic_cxr", synthetic=False)).encode_images(grey)


def test_folders_that_hold_no_model_are_refused(model_folder, make_network, tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        md.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=f"{model_folder.name} is one"):
        md.load(model_folder.parent)
    with pytest.raises(UserError, match="training mode"):
        Model(make_network().train())
    assert "manifest" in repr(md.load(str(model_folder), device="cpu"))


def test_unknown_words_and_options_against_the_model_are_refused(
    model, model_folder, grey, tmp_path
):
    with pytest.raises(TypeError, match="bogus"):
        model.zero_shot(grey, bogus=1)
    with pytest.raises(TypeError, match="bogus"):
        md.load("x", bogus=1)
    with pytest.raises(TypeError, match="did you mean 'equalize'"):
        md.prepare("x", tmp_path / "y", equalise=True)
    with pytest.raises(UserError, match="resample"):
        md.prepare("x", tmp_path / "y", resample="magic")
    with pytest.raises(UserError, match="size=64 is not what"):
        md.prepare("x", tmp_path / "y", for_model=model_folder, size=64)
    assert not (tmp_path / "y").exists()


def test_the_example_of_the_class_runs(model_folder, grey):
    found = doctest.testmod(module, extraglobs={"folder": model_folder, "image": grey})
    assert (found.failed, found.attempted > 4) == (0, True)

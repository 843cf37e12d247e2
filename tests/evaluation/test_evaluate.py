"""The whole evaluation of an untrained model, against one image and one sentence at a time."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score
from torchvision.ops import roi_align

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings, Preprocessing
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.errors import UserError
from medclip_debias.evaluation.evaluate import EvaluationOptions, evaluate
from medclip_debias.grounding.overlay import GAP
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.region_grid import RegionGrid

SIZE, INPUT = 48, 40  # of the fixtures' images and model


@pytest.fixture(scope="module")
def slow(small_prepared, small_model):
    """The same metrics the slow way: every image and sentence encoded on its own."""
    model = DualEncoder.load(small_model)
    images, phrases = small_prepared.images, small_prepared.phrases
    cut = (SIZE - INPUT) // 2
    regions = {}
    with torch.no_grad():
        for row, image_id in enumerate(images["image_id"]):
            pixels = small_prepared.pixels[row, cut : cut + INPUT, cut : cut + INPUT].copy()
            features = model.encode_images(torch.from_numpy(pixels)[None])
            regions[image_id] = features.regions[0]
        texts = set(phrases["text"]) | set(model.prompts["chex5"]["classes"])
        texts |= {"No pulmonary edema", "Pulmonary edema"}
        vectors = {text: model.encode_sentences([text])[0] for text in texts}
    return model, regions, vectors


def test_zero_shot_metrics_are_those_of_single_images(evaluated, slow, small_prepared):
    model, regions, vectors = slow
    images = small_prepared.images
    score, truth = [], []
    labels = small_prepared.studies.set_index("study_id")["Edema"]
    for image_id, study_id, split in zip(
        images["image_id"], images["study_id"], images["split"], strict=True
    ):
        if split == "test":
            pair = torch.stack([vectors["Pulmonary edema"], vectors["No pulmonary edema"]])
            with torch.no_grad():
                yes, no = model.similarity(regions[image_id][None], pair)[0].tolist()
            score.append(yes - no)
            truth.append(labels[study_id])
    auc, accuracy = (evaluated[0].value("zero_shot", name, "Edema") for name in ("auc", "accuracy"))
    found = evaluated[0].details("zero_shot")
    assert found["images"] == len(score) == 12
    assert auc == pytest.approx(roc_auc_score(truth, score), abs=1e-9)
    decided = (np.array(score) > 0) == (np.array(truth) == 1)
    assert accuracy == pytest.approx(decided.mean())
    assert found["refused"]["Pneumothorax"]["negative"] == 12
    assert found["refused"]["Cardiomegaly"]["reason"] == "no such label column"


def test_grounding_and_retrieval_are_those_of_single_phrases(evaluated, slow, small_prepared):
    model, regions, vectors = slow
    images = small_prepared.images.set_index("image_id")
    contrasts, hits, features, texts = [], [], [], []
    for image_id, text, boxes in zip(
        *(small_prepared.phrases[c] for c in ("image_id", "text", "boxes")), strict=True
    ):
        if images.loc[image_id, "split"] == "train":
            continue
        height, width = (int(images.loc[image_id, side]) for side in ("height", "width"))
        geometry = SquareGeometry(height, width, SIZE, INPUT)
        grid = (regions[image_id] @ vectors[text]).numpy().astype(float).reshape(model.grid.shape)
        i, j = (place.ravel() for place in np.mgrid[:height, :width])
        x, y = geometry.to_model(np.stack([j + 0.5, i + 0.5], axis=1)).T
        seen = (x >= 0) & (x <= INPUT) & (y >= 0) & (y <= INPUT)
        i, j, x, y = i[seen], j[seen], x[seen], y[seen]
        cells = model.grid.rows
        u, v = (np.clip((place - 0.5) / 8, 0, cells - 1) for place in (y, x))
        a, b = (np.minimum(place.astype(int), cells - 2) for place in (u, v))
        s, t = u - a, v - b
        values = (1 - s) * ((1 - t) * grid[a, b] + t * grid[a, b + 1])
        values += s * ((1 - t) * grid[a + 1, b] + t * grid[a + 1, b + 1])
        hit = np.zeros(len(values), bool)
        for x0, y0, w, h in boxes:
            hit |= (x0 <= j + 0.5) & (j + 0.5 < x0 + w) & (y0 <= i + 0.5) & (i + 0.5 < y0 + h)
        inside, outside = values[hit], values[~hit]
        difference = np.mean(inside) - np.mean(outside)
        contrasts.append(abs(difference) / np.sqrt(np.var(inside) + np.var(outside)))
        inside, outside = np.float32(inside), np.float32(outside)
        highest = max(inside.max(), outside.max())
        ties = [(part == highest).sum() for part in (inside, outside)]
        hits.append(ties[0] / sum(ties))
        moved = geometry.box_to_model(np.array(boxes))
        corners = np.concatenate([moved[:, :2], moved[:, :2] + moved[:, 2:]], axis=1)
        field = regions[image_id].T.reshape(1, -1, *model.grid.shape)
        # In roi_align's units the first region's centre, half a pixel into the input, is at .5.
        rois = torch.from_numpy(corners.clip(0, INPUT) + 3.5).float()
        pooled = roi_align(field, [rois], 1, spatial_scale=1 / 8, aligned=True)
        feature = pooled.flatten(1).mean(0)
        features.append((feature / feature.norm()).numpy())
        texts.append(text)
    found = evaluated[0]
    assert found.details("grounding")["phrases"] == len(contrasts) == 48
    assert found.details("grounding")["other_splits"] == 24
    assert found.value("grounding", "cnr") == pytest.approx(np.mean(contrasts), rel=1e-4)
    assert found.value("grounding", "pointing_game") == pytest.approx(np.mean(hits), abs=0.011)
    scores = np.array(features) @ np.array([vectors[text].numpy() for text in texts]).T
    ranks = [1 + (row > row[q]).sum() for q, row in enumerate(scores.T)]
    way = "strict, sentence to box"
    rank = found.value("retrieval", "median_rank", None, way)
    assert rank == pytest.approx(np.median(ranks), abs=1)
    recall = found.value("retrieval", "recall_at_10", None, way)
    assert recall == pytest.approx(np.mean(np.array(ranks) <= 10), abs=0.05)


def test_maps_that_explain_the_score_change_grounding_alone(evaluated, measured):
    options = EvaluationOptions(method="gradcam")
    found = measured("zero_shot", "grounding", "retrieval", options=options)
    assert found["options"]["method"] == "gradcam"
    plain_maps = evaluated[0]
    assert found.value("grounding", "cnr") != plain_maps.value("grounding", "cnr")
    assert found.value("zero_shot", "mean_auc") == plain_maps.value("zero_shot", "mean_auc")
    assert found.value("retrieval", "median_rank") == plain_maps.value("retrieval", "median_rank")


def test_the_results_file_says_what_it_was_made_from(evaluated, small_prepared):
    found, out = evaluated
    assert json.loads((out / "results.json").read_text()) == found
    assert found["data_hash"] == small_prepared.content_hash
    assert len(found["model_hash"]) == 16
    assert found["seed"] == 0
    assert found["options"]["labels"] == {"uncertain": "leave_out", "blank": "leave_out"}
    assert found["prompts"]["name"] == "chex5"
    assert found["counts"] == {
        **{"images": 24, "labelled_images": 12, "phrases": 48},
        # With the fixture's few word pieces, some prompts have more tokens than the model reads.
        **{"sentences": 31, "cut_sentences": 7, "asked_sentences": 110},
    }
    assert found["data"]["funnel"] == small_prepared.funnel
    assert found["timing"]["evaluate"] > 0
    low, high = found.interval("grounding", "cnr")
    assert low < found.value("grounding", "cnr") < high


def test_pictures_are_spread_over_categories_in_the_originals_shape(evaluated, small_prepared):
    index = json.loads((evaluated[1] / "heatmaps" / "index.json").read_text())
    items = index["items"]
    assert len(items) == 7
    assert "scores play no part" in index["choice"]
    kinds = [item["category"] for item in items]
    assert all(abs(kinds.count(k) - 7 / 3) < 1 for k in ("Edema", "Pneumonia", "Pneumothorax"))
    assert len({item["image_id"] for item in items}) == 7
    shapes = small_prepared.images.set_index("image_id")
    for item in items:
        assert item["boxes"]
        picture = Image.open(evaluated[1] / "heatmaps" / item["file"])
        height, width = shapes.loc[item["image_id"], ["height", "width"]]
        beside = (0.8 + GAP) * 110  # inches of the colour bar and between radiograph and map
        shown = (picture.width - beside) / 2  # the clean radiograph, and the map
        assert shown / picture.height == pytest.approx(width / height, abs=0.02)


def test_cases_are_the_best_the_median_and_the_worst_of_all_phrases(evaluated):
    index = json.loads((evaluated[1] / "heatmaps" / "index.json").read_text())
    table = pd.read_parquet(evaluated[1] / "items" / "phrases.parquet")
    assert len(index["cases"]) == 6
    for metric in ("cnr_signed", "miou"):
        values = sorted(table.loc[table["groundable"], metric], reverse=True)
        expected = {
            "best": values[0],
            "median": values[(len(values) - 1) // 2],
            "worst": values[-1],
        }
        shown = {c["case"]: c for c in index["cases"] if c["metric"] == metric}
        assert {name: case[metric] for name, case in shown.items()} == pytest.approx(expected)
        assert all((evaluated[1] / "heatmaps" / case["file"]).is_file() for case in shown.values())


def test_a_set_prepared_otherwise_is_refused(small_prepared, small_model, tmp_path):
    model = DualEncoder.load(small_model)
    model.preprocessing = Preprocessing(
        prepare=PrepareSettings(size=64, equalize=True), input_size=INPUT
    )
    model.save(tmp_path / "model")
    with pytest.raises(UserError, match="size 48 instead of 64, equalize False instead of True"):
        evaluate(tmp_path / "model", small_prepared.folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_stopped_evaluation_leaves_no_earlier_results_beside_its_items(
    measured, tmp_path, monkeypatch
):
    measured("laterality", "zero_shot")
    assert (tmp_path / "run" / "results.json").is_file()

    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("medclip_debias.evaluation.table.Results.write", stopped)
    with pytest.raises(KeyboardInterrupt):
        measured("zero_shot")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["items"]


def test_what_the_set_lacks_is_skipped_with_a_reason(write_prepared, measured, tmp_path):
    unlabelled = write_prepared(tmp_path / "a", labels=False)
    found = measured("zero_shot", "grounding", prepared=unlabelled)
    assert "no labels for Cardiomegaly" in found["skipped"]["zero_shot"]
    assert found.protocols == {"grounding"}
    assert found.details("grounding")["phrases"] == 48

    only_held_out = write_prepared(tmp_path / "b", splits=("train", "held_out"))
    found = measured("zero_shot", "grounding", prepared=only_held_out)
    assert "no image in the split 'test'" in found["skipped"]["zero_shot"]
    assert found.details("grounding")["phrases"] == 36


def test_nothing_to_evaluate_is_one_sentence(write_prepared, small_model, tmp_path):
    folder = write_prepared(tmp_path / "train", splits=("train",))
    with pytest.raises(UserError, match="nothing to evaluate") as error:
        evaluate(small_model, folder, tmp_path / "run")
    assert "no image in the split 'test'" in str(error.value)
    assert "36 in 'train'" in str(error.value)


def test_a_label_policy_and_prompts_of_ones_own(measured, tmp_path):
    prompts = tmp_path / "own.yaml"
    prompts.write_text(
        "name: own\nclasses:\n  Pneumonia:\n    positive: [Small pneumothorax., Mild edema.]\n"
        "    negative: [No signs of pneumonia]\n"
    )
    options = EvaluationOptions.model_validate(
        {"labels": {"uncertain": "as_positive", "blank": "as_negative"}, "smoothing": 0.7}
    )
    found = measured("zero_shot", prompts=prompts, options=options)
    assert list(found.by_class("zero_shot", "auc")) == ["Pneumonia"]
    assert found.details("zero_shot")["classes"]["Pneumonia"]["left_out"] == 0
    assert found["prompts"]["name"] == "own"
    assert found["options"]["smoothing"] == 0.7


def test_items_can_be_paired_and_name_nobody(evaluated, small_prepared):
    found, out = evaluated
    tables = {path.stem: pd.read_parquet(path) for path in (out / "items").iterdir()}
    files = {"zero_shot", "phrases", "retrieval", "study_retrieval", "masks", "progression"}
    files |= {"sentence_boxes", "laterality", "triplets"}
    assert set(tables) == files
    images = small_prepared.images
    test = images[images["split"] == "test"]

    def key(name):
        """HMAC-SHA256 (RFC 2104) under the secret of the prepared set."""
        secret = bytes.fromhex((small_prepared.folder / "items.key").read_text())
        block = secret.ljust(64, b"\0")
        inner, outer = (bytes(byte ^ pad for byte in block) for pad in (0x36, 0x5C))
        text = f"{small_prepared.content_hash}:{name}".encode()
        inside = hashlib.sha256(inner + text).digest()
        return hashlib.sha256(outer + inside).hexdigest()[:16]

    zero = tables["zero_shot"]
    assert zero["item"].tolist() == [key(name) for name in test["image_id"]]
    assert zero["patient"].tolist() == [key(name) for name in test["patient_id"]]
    assert zero["score.Edema"].dtype == np.float64
    auc = roc_auc_score(zero["label.Edema"], zero["score.Edema"])
    assert auc == pytest.approx(found.value("zero_shot", "auc", "Edema"))
    assert zero["label.Cardiomegaly"].isna().all()
    phrases = tables["phrases"]
    assert len(phrases) == 48
    assert phrases["cnr"].mean() == pytest.approx(found.value("grounding", "cnr"))
    assert phrases["pointing"].mean() == pytest.approx(found.value("grounding", "pointing_game"))
    assert set(phrases.columns) >= {
        *("item", "patient", "category", "cnr_signed", "miou", "miou_middle", "area"),
        *("sentence_count", "groundable", "box_recall_0.1"),
    }
    ranks = tables["retrieval"]["rank_image_to_text_strict"]
    way = "strict, box to sentence"
    assert ranks.median() == found.value("retrieval", "median_rank", None, way)
    raw = b"".join(path.read_bytes() for path in (out / "items").iterdir())
    for name in (*images["image_id"], *images["study_id"], "Pulmonary edema", "Mild edema"):
        assert name.encode() not in raw


def test_groups_of_phrases_add_up(evaluated):
    found = evaluated[0]
    for kind in ("category", "area", "frequency"):
        groups = found.groups("grounding", "cnr", kind).values()
        rows = [found.row("grounding", "cnr", None, group) for group in groups]
        assert sum(row["n"] for row in rows) == 48
        mean = sum(row["n"] * row["value"] for row in rows) / 48
        assert mean == pytest.approx(found.value("grounding", "cnr"))
    assert found.details("grounding")["not_groundable"] == 0
    assert evaluated[0]["options"]["boxes"]["rule"] == "share_of_range"


def test_study_retrieval_scores_are_those_of_the_model(evaluated, slow, small_prepared):
    model, regions, vectors = slow
    images = small_prepared.images
    test = images[images["split"] == "test"]
    said = small_prepared.sentences.set_index("study_id")["text"]
    texts = [said[study] for study in test["study_id"]]
    with torch.no_grad():
        table = np.array(
            [
                [float(model.similarity(regions[i][None], vectors[t][None])) for t in texts]
                for i in test["image_id"]
            ]
        )
    ranks = [
        1 + (np.round(row, 5) > round(row[q], 5)).sum() + ((texts.count(texts[q]) - 1) / 2)
        for q, row in enumerate(table)
    ]
    way = "strict, image to report"
    rank = evaluated[0].value("study_retrieval", "median_rank", None, way)
    assert rank == pytest.approx(np.median(ranks), abs=0.5)
    assert evaluated[0].details("study_retrieval")["studies"] == 12


def test_a_model_without_regions_is_not_asked_to_ground(measured, monkeypatch):
    one = property(lambda model: RegionGrid(1, 1, 40.0, 20.0))
    monkeypatch.setattr(DualEncoder, "grid", one)
    found = measured("zero_shot", "grounding", "retrieval", heatmaps=2)
    assert "no regions" in found["skipped"]["grounding"]
    assert "no regions" in found["skipped"]["retrieval"]
    assert found.details("zero_shot")["images"] == 12


def test_pictures_of_an_earlier_evaluation_do_not_stay_beside_other_results(measured, tmp_path):
    measured("grounding", "study_retrieval", heatmaps=1)
    folders = [tmp_path / "run" / name for name in ("heatmaps", "retrieval")]
    assert all((folder / "index.json").is_file() for folder in folders)
    measured("grounding", "study_retrieval")
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("part", ["image_encoder.bn1.running_var", "image_projection.weight"])
def test_a_model_that_gives_nan_is_reported_and_writes_nothing(
    small_prepared, small_model, tmp_path, capsys, part
):
    model = DualEncoder.load(small_model)
    model.state_dict()[part].fill_(torch.nan)
    model.save(tmp_path / "broken")
    out = tmp_path / "out"
    words = [str(tmp_path / "broken"), str(small_prepared.folder), "--out", str(out)]
    listed = tmp_path / "sentences.txt"
    listed.write_text("".join(f"Opacity number {n}.\n" for n in range(40)))
    more = {"evaluate": [], "evaluate probe": [], "index": ["--sentences", str(listed)]}
    for verb, others in more.items():
        assert run([*verb.split(), *words, *others]) == 2
        sentence = capsys.readouterr().err
        assert "values that the model gave are NaN or infinite" in sentence
        assert sentence.count("\n") == 1
        assert not out.exists()
        if verb == "evaluate":
            assert "zero_shot: " in sentence
            assert str(tmp_path / "broken") in sentence

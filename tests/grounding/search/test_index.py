"""An index from end to end: exact results, the same bytes, and what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from medclip_debias.cli import run
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.grounding.search.build import build_index
from medclip_debias.grounding.search.query import SearchIndex
from medclip_debias.grounding.search.settings import FLAT_UP_TO, IndexSettings
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.golden import IMAGES


@pytest.fixture(scope="module")
def truth(model_folder, prepared_phantom):
    """The model, the set, and every image's features in single precision."""
    model = DualEncoder.load(model_folder)
    data = PreparedSet.open(prepared_phantom)
    with torch.no_grad():
        features = model.encode_images(torch.from_numpy(np.array(data.pixels)))
    return model, data, features


def content(folder):
    """The bytes of every file, without the paths that ``index.json`` holds."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    meta = json.loads(found.pop("index.json"))
    return found, meta


def test_with_every_image_a_candidate_the_ranking_is_the_models_own(index_folder, truth):
    model, data, features = truth
    index = SearchIndex.open(index_folder)
    for text in data.texts[:8]:
        with torch.no_grad():
            vector = model.encode_sentences([text])[0]
            exact = model.score(features, vector[None])[:, 0].numpy()
        hits = index.by_sentence(vector, model.score, k=12, candidates=len(data))
        assert [hit.rank for hit in hits] == list(range(1, 13))
        for hit, best in zip(hits, np.sort(exact)[::-1], strict=False):
            # The stored regions have half precision, so near equals may change places.
            assert hit.score == pytest.approx(exact[hit.row], abs=1e-3)
            assert hit.score == pytest.approx(best, abs=1e-3)
            row = data.images.iloc[hit.row]
            assert (hit.image_id, hit.study_id) == (row["image_id"], row["study_id"])
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)


def test_recall_that_the_index_tells_is_true_of_its_held_out_sentences(
    index_folder, index_settings, truth
):
    """Measured once more from outside, with the model's float32 regions as the truth."""
    model, data, features = truth
    index = SearchIndex.open(index_folder)
    reported = index.meta["recall"]["sentences"]
    assert reported["held_out"]
    assert reported["asked"] == index_settings.queries
    order = np.random.default_rng(index_settings.seed).permutation(len(data.texts))
    first = index.meta["landmarks"]
    texts = [data.texts[number] for number in order[first : first + index_settings.queries]]
    recalls = []
    with torch.no_grad():
        vectors = model.encode_sentences(texts)
        exact = model.score(features, vectors).numpy()
    for number, vector in enumerate(vectors):
        found = [hit.row for hit in index.by_sentence(vector, model.score, 10, 50)]
        limit = np.sort(exact[:, number])[-10]
        recalls.append((exact[found, number] >= limit - 1e-3).mean())
    assert np.mean(recalls) == pytest.approx(reported["by_candidates"]["50"], abs=0.03)
    assert reported["by_candidates"][str(len(data))] == 1


def test_an_image_of_the_set_finds_itself(index_folder, truth):
    _, data, features = truth
    index = SearchIndex.open(index_folder)
    for row in (0, 17, len(data) - 1):
        for ranking in ("regions", "global"):
            hits = index.by_image(features[row], k=3, ranking=ranking)
            assert hits[0].row == row
            assert hits[0].score == pytest.approx(1, abs=2e-3)
            assert hits[1].score < hits[0].score


class Killed(Exception):
    pass


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_killed_run_goes_on_and_gives_the_same_bytes(
    index_folder, model_folder, prepared_phantom, index_settings, tmp_path, share, monkeypatch
):
    def kill(done, total):
        if done >= share * total:
            raise Killed

    out = tmp_path / "index"
    with pytest.raises(Killed):
        build_index(model_folder, prepared_phantom, out, index_settings, progress=kill)
    assert not out.exists()
    work = tmp_path / ".index.building" / "regions.bin"
    with work.open("ab") as stream:
        stream.write(b"half an image")  # what a killed process may leave
    encoded = []
    encode = DualEncoder.encode_images

    def counting(self, images):
        encoded.append(len(images))
        return encode(self, images)

    monkeypatch.setattr(DualEncoder, "encode_images", counting)
    build_index(model_folder, prepared_phantom, out, index_settings)
    images = len(PreparedSet.open(prepared_phantom))
    # Loading the model encodes the images of its self-test.
    allowed = images - share * 2 * images + 2 * index_settings.batch_size
    assert sum(encoded) - IMAGES <= max(allowed, 0)
    assert content(out) == content(index_folder)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_cells_are_seeded_and_measured(model_folder, prepared_phantom, index_settings, tmp_path):
    settings = index_settings.model_copy(update={"kind": "ivf"})
    meta = build_index(model_folder, prepared_phantom, tmp_path / "a", settings)
    build_index(model_folder, prepared_phantom, tmp_path / "b", settings)
    assert meta["kind"] == "ivf"
    assert content(tmp_path / "a")[0] == content(tmp_path / "b")[0]
    flat = IndexSettings()
    assert flat.kind_for(FLAT_UP_TO) == "flat"
    assert flat.kind_for(FLAT_UP_TO + 1) == "ivf"


# ------------------------------------------------------------------------------- the verbs


def test_the_verbs_index_and_find(model_folder, prepared_phantom, tmp_path, capsys):
    folder = tmp_path / "index"
    words = ["index", model_folder, prepared_phantom, "--out", folder]
    words += ["--set", "landmarks=60", "--set", "image_queries=2"]
    assert run([str(word) for word in words]) == 0
    captured = capsys.readouterr()
    assert "recall@10 for sentences" in captured.out
    data = PreparedSet.open(prepared_phantom)
    assert run(["search", str(folder), "--text", "Left effusion.", "-k", "4", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["images"] == len(data)
    assert [hit["rank"] for hit in found["hits"]] == [1, 2, 3, 4]
    known = dict(zip(data.images["image_id"], data.images["study_id"], strict=True))
    assert all(known[hit["image_id"]] == hit["study_id"] for hit in found["hits"])
    assert run(["search", str(folder), "--text", "Left effusion.", "-k", "4"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert [line.split()[2] for line in lines] == [hit["image_id"] for hit in found["hits"]]
    assert not any(hit["image_id"] in captured.err for hit in found["hits"])


@pytest.fixture
def reported(capsys):
    def reported(*words):
        capsys.readouterr()
        assert run([str(word) for word in words]) == 2
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return captured.err.splitlines()[-1]

    return reported


def test_bad_questions_are_refused_in_a_sentence(index_folder, reported, tmp_path):
    assert "either a sentence" in reported("search", index_folder)
    assert "either a sentence" in reported(
        "search", index_folder, "--text", "a", "--image", "b.png"
    )
    assert "Sentence 1 is empty" in reported("search", index_folder, "--text", " ")
    assert "absent.png" in reported("search", index_folder, "--image", "absent.png")
    (tmp_path / "letter.png").write_text("no image")
    assert "letter.png" in reported("search", index_folder, "--image", tmp_path / "letter.png")
    assert "ranking" in reported("search", index_folder, "--text", "a", "--ranking", "best")
    assert "absent" in reported("search", tmp_path / "absent", "--text", "a")
    assert "no search index" in reported("search", tmp_path, "--text", "a")


def test_another_model_or_none_is_refused(
    index_folder, model_folder, make_model, reported, tmp_path
):
    other = tmp_path / "other"
    make_model(72, 64, (0.5, 99.5), seed=8).save(other)
    sentence = reported("search", index_folder, "--text", "a", "--model", other)
    assert "is not the model" in sentence
    moved = tmp_path / "index"
    shutil.copytree(index_folder, moved)
    meta = json.loads((moved / "index.json").read_text())
    (moved / "index.json").write_text(json.dumps(meta | {"model": str(tmp_path / "gone")}))
    assert "--model" in reported("search", moved, "--text", "a")
    assert run(["search", str(moved), "--text", "a", "--model", str(model_folder)]) == 0


def test_an_index_of_a_set_that_changed_is_refused(
    model_folder, prepared_phantom, index_settings, reported, tmp_path
):
    data = tmp_path / "set"
    shutil.copytree(prepared_phantom, data)
    build_index(model_folder, data, tmp_path / "index", index_settings)
    meta = json.loads((data / "meta.json").read_text())
    (data / "meta.json").write_text(json.dumps(meta | {"content_hash": "another"}))
    assert "out of date" in reported("search", tmp_path / "index", "--text", "a")
    shutil.rmtree(data)  # a set that is gone is not one that changed
    assert run(["search", str(tmp_path / "index"), "--text", "a"]) == 0


@pytest.mark.parametrize(
    "name", ["regions.bin", "text.faiss", "items.arrow", "landmarks.safetensors"]
)
def test_a_damaged_index_is_named(index_folder, reported, tmp_path, name):
    folder = tmp_path / "index"
    shutil.copytree(index_folder, folder)
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    sentence = reported("search", folder, "--text", "a")
    assert name in sentence
    assert "run 'index' again" in sentence
    (folder / name).write_bytes(b"\x07" * len(whole))
    assert name in reported("search", folder, "--text", "a")
    (folder / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert name in reported("search", folder, "--text", "a")
    (folder / name).unlink()
    assert name in reported("search", folder, "--text", "a")


def test_an_exchange_that_was_cut_off_keeps_the_earlier_index(
    index_folder, model_folder, prepared_phantom, index_settings, tmp_path
):
    shutil.copytree(index_folder, tmp_path / ".index.retired")
    with pytest.raises(UserError, match="is already there"):
        build_index(model_folder, prepared_phantom, tmp_path / "index", index_settings)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert content(tmp_path / "index") == content(index_folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"format": 9}', '{"format": 1}'])
def test_a_damaged_description_is_named(index_folder, reported, tmp_path, text):
    folder = tmp_path / "index"
    shutil.copytree(index_folder, folder)
    (folder / "index.json").write_text(text)
    assert "index.json" in reported("search", folder, "--text", "a")


def test_what_cannot_be_indexed_is_refused(
    model_folder, prepared_phantom, make_model, index_folder, reported, tmp_path
):
    sentence = reported("index", model_folder, prepared_phantom, "--out", index_folder)
    assert "--overwrite" in sentence
    other = tmp_path / "model"
    make_model(96, 80, (0, 100)).save(other)
    assert "prepared otherwise" in reported(
        "index", other, prepared_phantom, "--out", tmp_path / "a"
    )
    sentence = reported(
        "index", model_folder, prepared_phantom, "--out", tmp_path / "a", "--set", "landmark=3"
    )
    assert "did you mean 'landmarks'" in sentence
    assert not (tmp_path / "a").exists()
    data = tmp_path / "set"
    shutil.copytree(prepared_phantom, data)
    table = pd.read_parquet(data / "sentences.parquet")
    table.assign(text="Clear.").to_parquet(data / "sentences.parquet", index=False)
    assert "sentences.parquet: was changed" in reported(
        "index", model_folder, data, "--out", tmp_path / "a"
    )
    meta = json.loads((data / "meta.json").read_text()) | {"hashes": None, "files": []}
    (data / "meta.json").write_text(json.dumps(meta))  # as of a version that noted no hashes
    assert "--sentences" in reported("index", model_folder, data, "--out", tmp_path / "a")
    words = tmp_path / "words.txt"
    words.write_text("\n".join(f"Lung {number}." for number in range(60)))
    out = str(tmp_path / "a")
    again = ["index", str(model_folder), str(data), "--out", out, "--sentences", str(words)]
    assert run(again) == 0

"""An index from end to end: exact results, the same bytes, and what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from medclip_debias.cli import run
from medclip_debias.data.layout import table_hashes
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.grounding.search.build import build_index
from medclip_debias.grounding.search.landmarks import Landmarks
from medclip_debias.grounding.search.learn import FLAT_UP_TO, IndexSettings
from medclip_debias.grounding.search.query import SearchIndex, search
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


@pytest.fixture
def copied(index_folder, tmp_path):
    """A copy of the index, to be damaged."""
    return shutil.copytree(index_folder, tmp_path / "copied")


@pytest.fixture
def reported(capsys):
    """A function that runs a command which is refused, and returns the sentence."""

    def refused(*words):
        capsys.readouterr()
        assert run([str(word) for word in words]) == 2
        return capsys.readouterr().err.splitlines()[-1]

    return refused


def content(folder):
    """The bytes of every file but ``index.json``, which holds paths."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "index.json"}


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_with_every_image_a_candidate_the_ranking_is_the_models_own(index_folder, truth):
    model, data, features = truth
    index = SearchIndex.open(index_folder)
    for text in data.texts[:8]:
        with torch.no_grad():
            vector = model.encode_sentences([text])[0]
            exact = model.score(features, vector[None])[:, 0].numpy()
        hits = index.by_sentence(vector, model.score, k=12, candidates=len(data))
        assert [hit.rank for hit in hits] == list(range(1, 13))
        # The stored regions have half precision, so near equals may change places.
        scores = [hit.score for hit in hits]
        assert scores == pytest.approx(np.sort(exact)[::-1][:12], abs=1e-3)
        assert scores == sorted(scores, reverse=True)
        for hit in hits:
            assert hit.score == pytest.approx(exact[hit.row], abs=1e-3)
            row = data.images.iloc[hit.row]
            assert (hit.image_id, hit.study_id) == (row["image_id"], row["study_id"])


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
    with torch.no_grad():
        vectors = model.encode_sentences(texts)
        exact = model.score(features, vectors).numpy()
    recalls = []
    for scores, vector in zip(exact.T, vectors, strict=True):
        found = [hit.row for hit in index.by_sentence(vector, model.score, 10, 50)]
        recalls.append((scores[found] >= np.sort(scores)[-10] - 1e-3).mean())
    assert np.mean(recalls) == pytest.approx(reported["by_candidates"]["50"], abs=0.03)
    assert reported["by_candidates"][str(len(data))] == 1


def test_an_image_of_the_set_finds_itself(index_folder, truth):
    _, data, features = truth
    index = SearchIndex.open(index_folder)
    for row, ranking in ((0, "regions"), (len(data) - 1, "global")):
        hits = index.by_image(features[row], k=3, ranking=ranking)
        assert hits[0].row == row
        assert hits[0].score == pytest.approx(1, abs=2e-3)
        assert hits[1].score < hits[0].score


def test_a_killed_run_goes_on_and_gives_the_same_bytes(
    index_folder, model_folder, prepared_phantom, index_settings, tmp_path, monkeypatch
):
    def kill(done, total):
        if done >= 0.3 * total:
            raise KeyboardInterrupt

    out, what = tmp_path / "index", (model_folder, prepared_phantom)
    with pytest.raises(KeyboardInterrupt):
        build_index(*what, out, index_settings, progress=kill)
    assert not out.exists()
    with (tmp_path / ".index.building" / "regions.bin").open("ab") as stream:
        stream.write(b"half an image")  # what a killed process may leave
    encoded = []
    encode = DualEncoder.encode_images

    def counting(self, images):
        encoded.append(len(images))
        return encode(self, images)

    monkeypatch.setattr(DualEncoder, "encode_images", counting)
    build_index(*what, out, index_settings)
    images = len(PreparedSet.open(prepared_phantom))
    # Loading the model encodes the images of its self-test.
    assert sum(encoded) - IMAGES <= 0.4 * images + 2 * index_settings.batch_size
    assert content(out) == content(index_folder)
    ours, theirs = (json.loads((f / "index.json").read_text()) for f in (out, index_folder))
    assert ours == theirs
    # A run that was killed while it exchanged the folders.
    out.rename(tmp_path / ".index.retired")
    with pytest.raises(UserError, match="is already there"):
        build_index(*what, out, index_settings)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_cells_are_for_many_images_and_seeded(
    model_folder, prepared_phantom, index_settings, tmp_path
):
    assert IndexSettings().kind_for(FLAT_UP_TO) == "flat"
    assert IndexSettings().kind_for(FLAT_UP_TO + 1) == "ivf"
    settings = index_settings.model_copy(update={"kind": "ivf"})
    for name in "ab":
        meta = build_index(model_folder, prepared_phantom, tmp_path / name, settings)
        assert meta["kind"] == "ivf"
    assert content(tmp_path / "a") == content(tmp_path / "b")
    # The cells that are looked into first hold an eighth of the images; all are found when asked.
    images = meta["regions"][0]
    assert meta["recall"]["sentences"]["by_candidates"][str(images)] == 1
    found = search(tmp_path / "a", text="Left effusion.", k=images)
    assert len({hit["row"] for hit in found["hits"]}) == found["candidates"] == images


def test_the_verbs_index_and_find(model_folder, prepared_phantom, tmp_path, capsys):
    folder = tmp_path / "index"
    words = ["index", model_folder, prepared_phantom, "--out", folder]
    words += ["--set", "landmarks=60", "--set", "image_queries=2"]
    assert run([str(word) for word in words]) == 0
    assert "recall@10 for sentences" in capsys.readouterr().out
    data = PreparedSet.open(prepared_phantom)
    question = ["search", str(folder), "--text", "Left effusion.", "-k", "4"]
    assert run([*question, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images"] == len(data)
    assert [hit["rank"] for hit in found["hits"]] == [1, 2, 3, 4]
    known = dict(zip(data.images["image_id"], data.images["study_id"], strict=True))
    assert all(known[hit["image_id"]] == hit["study_id"] for hit in found["hits"])
    assert run(question) == 0
    captured = capsys.readouterr()
    names = [hit["image_id"] for hit in found["hits"]]
    assert [line.split()[2] for line in captured.out.splitlines()] == names
    assert not any(name in captured.err for name in names)
    assert "results, not" not in captured.err
    assert run([*question[:-1], "11"]) == 0
    assert "candidates were chosen for 10 results, not 11" in capsys.readouterr().err


# ------------------------------------------------------------------------- what is refused


def test_bad_questions_are_refused_in_a_sentence(index_folder, reported, tmp_path):
    letter = tmp_path / "letter.png"
    letter.write_text("no image")
    for words, sentence in (
        ([], "either a sentence"),
        (["--text", "a", "--image", "b.png"], "either a sentence"),
        (["--text", " "], "Sentence 1 is empty"),
        (["--image", "absent.png"], "absent.png"),
        (["--image", letter], "letter.png"),
        (["--text", "a", "--ranking", "best"], "ranking"),
        (["--text", "a", "--ranking", "global"], "leaves out the exact stage"),
    ):
        assert sentence in reported("search", index_folder, *words)
    assert "absent" in reported("search", tmp_path / "absent", "--text", "a")
    assert "not a search index" in reported("search", tmp_path, "--text", "a")


def test_another_model_or_none_is_refused(copied, model_folder, make_model, reported, tmp_path):
    make_model(72, 64, (0.5, 99.5), seed=8).save(tmp_path / "other")
    words = ["search", copied, "--text", "a", "--model"]
    assert "is not the model" in reported(*words, tmp_path / "other")
    edit_json(copied / "index.json", model=str(tmp_path / "gone"))
    assert "--model" in reported(*words[:-1])
    assert run([str(word) for word in (*words, model_folder)]) == 0


def test_an_index_of_a_set_that_changed_is_refused(copied, prepared_phantom, reported, tmp_path):
    data = shutil.copytree(prepared_phantom, tmp_path / "set")
    edit_json(copied / "index.json", prepared=str(data))
    edit_json(data / "meta.json", content_hash="another")
    assert "out of date" in reported("search", copied, "--text", "a")
    shutil.rmtree(data)  # a set that is gone is not one that changed
    assert run(["search", str(copied), "--text", "a"]) == 0


def test_a_damaged_index_is_named(copied, reported):
    question = ("search", copied, "--text", "a")
    for name in ("regions.bin", "text.faiss", "items.arrow", "landmarks.safetensors"):
        path = copied / name
        whole = path.read_bytes()
        for changed in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
            path.write_bytes(changed)
            sentence = reported(*question)
            assert name in sentence
            assert "run 'index' again" in sentence
        path.unlink()
        assert "'index'" in reported(*question)
        path.write_bytes(whole)
    for changed in ("[]", '{"format": 9}'):
        (copied / "index.json").write_text(changed)
        assert "index.json" in reported(*question)


def test_an_index_does_not_lead_out_of_its_folder(copied, tmp_path):
    path = copied / "landmarks.safetensors"
    path.rename(tmp_path / "landmarks.safetensors")
    path.symlink_to("../landmarks.safetensors")
    with pytest.raises(UserError, match="is a link out of its folder"):
        Landmarks.load(path)


def test_what_cannot_be_indexed_is_refused(
    model_folder, prepared_phantom, make_model, index_folder, reported, tmp_path
):
    out, other = tmp_path / "a", tmp_path / "model"
    make_model(96, 80, (0, 100)).save(other)
    data = shutil.copytree(prepared_phantom, tmp_path / "set")
    table = pd.read_parquet(data / "sentences.parquet")
    table.assign(text="Clear.").to_parquet(data / "sentences.parquet", index=False)
    mine, setting = (model_folder, prepared_phantom), ("--set", "landmark=3")
    for words, sentence in (
        ((*mine, "--out", index_folder), "--overwrite"),
        ((other, prepared_phantom, "--out", out), "prepared otherwise"),
        ((*mine, "--out", out, *setting), "did you mean 'landmarks'"),
        ((model_folder, data, "--out", out), "sentences.parquet: was changed"),
    ):
        assert sentence in reported("index", *words)
    edit_json(data / "meta.json", hashes=table_hashes(data))  # a set with one sentence
    again = ["index", str(model_folder), str(data), "--out", str(out)]
    assert "--sentences" in reported(*again)
    assert not out.exists()
    words = tmp_path / "words.txt"
    words.write_text("\n".join(f"Lung {number}." for number in range(60)))
    assert run([*again, "--sentences", str(words)]) == 0

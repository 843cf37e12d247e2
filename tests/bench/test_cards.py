"""Every packaged card holds together, and is run on its archive's form of a tiny phantom."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from cards import FIVE, app, five_by_count, single_box
from commands import run_script
from medclip_debias.bench.card import Card, find_card, packaged_cards
from medclip_debias.bench.images import list_hash, read_list
from medclip_debias.bench.record import Judged
from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.label_maps import load_label_map
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.records import ImageRecord, Source, StudyRecord
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.sources.registry import formats
from medclip_debias.data.text.reports import ReportSettings
from medclip_debias.data.views import view_class
from medclip_debias.errors import UserError
from medclip_debias.evaluation import evaluate as evaluation
from medclip_debias.evaluation.catalogue import METRICS, address
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.presets import chosen_presets
from medclip_debias.evaluation.protocols import sentence_boxes
from medclip_debias.models import load
from phantom_layouts import LAYOUTS, ArchiveSettings, write_archive
from phantom_triplets import write_triplets
from tests.bench.models import save_language_model, save_model

CARDS = packaged_cards()
PAGE = Path(__file__).parents[2] / "docs" / "cards.md"
SIZE = 48
PHANTOM = {"studies": 36, "test_studies": 16, "seed": 11, "min_side": 64, "max_side": 72}
PROMISED = Counter(zero_shot=8, grounding=4, segmentation=2, retrieval=3, negation=2, time=1)
GLORIA = "presets.gloria.study_retrieval.precision_at"
RARE = {  # there are fewer than 100 reports
    "study_retrieval.class_precision.image_to_report.precision_at_100",
    f"{GLORIA}_10",
    f"{GLORIA}_100",
}


def layout_of(card: Card) -> str:
    """The layout of the phantom that a card's archive has; "" for none."""
    if card.kind == "time":
        return "ms_cxr_t"
    return card.data.archive if card.data.archive in LAYOUTS else ""


RUN = [name for name, card in CARDS.items() if layout_of(card)]


def test_what_a_card_names_is_there():
    real = [card for card in CARDS.values() if not card.data.synthetic]
    assert not PROMISED - Counter(card.kind for card in real)
    # Of the archives, only Open-i has no form of the phantom: everything else is run here.
    assert {card.data.archive for name, card in CARDS.items() if name not in RUN} == {"openi"}
    example = yaml.safe_load(PAGE.read_text("utf-8").partition("```yaml\n")[2].partition("```")[0])
    known = {metric.key for metric in METRICS}
    for card in (*CARDS.values(), Card.model_validate(example)):
        chosen_presets(card.preset)
        assert all(m in known or m.startswith(f"presets.{card.preset}.") for m in card.metrics)
        assert card.data.archive in formats()
        if card.prompts is not None:
            load_prompts(card.prompts).only(card.classes)
        if card.label_map is not None:
            load_label_map(card.label_map)
        EvaluationOptions.model_validate(card.options)
        SelectionSettings.model_validate(card.data.prepare)
        ReportSettings.model_validate(card.data.reports)
        assert card.data.synthetic == card.name.startswith("phantom/")
        assert card.data.synthetic or card.differs, "an archive's card says how it differs"
        assert card.data.list.column is None or card.data.list.file is not None


def test_lists_of_classes_are_as_published():
    """MAVL's lists: 14 seen, 26 unseen and 39 rare classes, five of them in both."""
    seen, unseen, rare = (
        set(CARDS[f"padchest/zero-shot-{part}"].classes) for part in ("seen", "unseen", "rare")
    )
    assert (len(seen), len(unseen), len(rare), len(unseen & rare)) == (14, 26, 39, 5)
    assert not seen & (unseen | rare)
    assert set(load_prompts("padchest").classes) == seen | unseen | rare


def test_a_card_s_hash_is_of_what_figures_depend_on():
    class Later(Card):
        """A card of a later version."""

        new: str = "as ever"

    for card in CARDS.values():
        later = Later.model_validate(card.model_dump())
        assert later.content_hash == card.content_hash
        assert later.model_copy(update={"new": "x"}).content_hash != card.content_hash
        assert card.model_copy(update={"title": "x"}).content_hash == card.content_hash
        assert card.model_copy(update={"preset": "x"}).content_hash != card.content_hash


# ------------------------------------------------------------------------------- run on a phantom


def write_classes(source: Source, out: Path) -> None:
    """A list in the form of 5x200: the phantom has no consolidation without another finding."""
    names = [
        image.image_id
        for image in source.images()
        if view_class(image.view) == "frontal" and image.split == "test"
    ]
    classes = [FIVE[number % len(FIVE)] for number in range(len(names))]
    pd.DataFrame({"image_id": names, "class": classes}).to_csv(out, index=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model, and a function from a card to its archive and set, each made once.

    What every evaluation makes anew is made once too: model, lexicon of sentences, code's hash.
    """
    folder = tmp_path_factory.mktemp("cards")
    corpus = sorted(
        {text for name in ("padchest", "chexpert") for text in load_prompts(name).texts}
    )
    save_model(folder / "model", save_language_model(folder / "lm", corpus), SIZE)

    @cache
    def tree(layout: str) -> Path:
        root = folder / "trees" / layout
        write_archive(root, ArchiveSettings(layout=layout, format="jpg", **PHANTOM), 1)
        if layout == "mimic_cxr":
            write_triplets(root, root / "triplets.csv", 0)
            shutil.copy(root / "triplets.csv", root / "cxr-align.csv")
            phrases = next(root.glob("MS_CXR_Local*.json"))
            single_box(phrases, root / "ms_cxr_single_box.json")
        if layout in ("mimic_cxr", "chexpert", "chexpert_plus"):
            write_classes(detect(root, layout), root / "five_by_200.csv")
        return root

    @cache
    def prepared(layout: str, kind: str, selection: str, all_test: bool) -> Path:
        out = folder / "sets" / f"{layout}-{abs(hash((selection, all_test)))}"
        how = {"selection": SelectionSettings.model_validate_json(selection), "workers": 1}
        reading = Reading(kind=kind, all_test=all_test)
        return prepare(tree(layout), out, PrepareSettings(size=SIZE), reading=reading, **how).folder

    def made(card: Card) -> tuple[Path, Path, Path]:
        layout = layout_of(card)
        selection = SelectionSettings.model_validate(card.data.prepare).model_dump_json()
        set_of = prepared(layout, card.data.archive, selection, card.data.list.split == "all")
        return folder / "model", tree(layout), set_of

    with pytest.MonkeyPatch.context() as patched:
        for module, name in ((load, "load_model"), (sentence_boxes, "Reader")):
            patched.setattr(module, name, cache(getattr(module, name)))
        yield made


@pytest.mark.parametrize("name", RUN)
def test_a_card_is_measured_on_its_archive_s_form_of_a_phantom(name, world, tmp_path, monkeypatch):
    card = CARDS[name]
    if name != "padchest/zero-shot-rare":
        only = frozenset(address(metric)[0] for metric in card.metrics)
        monkeypatch.setattr(evaluation, "plan", partial(evaluation.plan, only=only))
    model, root, prepared = world(card)
    files = {keyword: root / file for keyword, file in card.data.files if file is not None}
    # A phantom's triplets are a table, not a JSON file.
    files = {k: p if p.is_file() else p.with_suffix(".csv") for k, p in files.items()}
    results = evaluation.evaluate(
        model,
        prepared,
        tmp_path,
        split="test",
        bootstrap=0,
        heatmaps=0,
        prompts=card.prompts,
        classes=card.classes,
        label_map=card.label_map,
        options=EvaluationOptions.model_validate({**card.options, "preset": card.preset}),
        **files,
    )
    if name == "padchest/zero-shot-rare":  # the phantom has none of these findings
        assert results["skipped"]["zero_shot"].startswith("The set has no labels for suture")
        return
    rows = {metric: results.of(metric) for metric in card.metrics}
    values = {metric: row and row["value"] for metric, row in rows.items()}
    assert {metric for metric, value in values.items() if value is None} <= RARE, results["skipped"]
    assert all(np.isfinite(value) for value in values.values() if value is not None)
    if card.data.list.file:
        card = with_list(card, images=None, hash=None)  # a phantom has fewer images
        if card.data.archive == "chestx_det":  # the phantom's is ChestX-Det, the card's -Det10
            card = with_list(card, file="ChestX_Det_test.json")
        images = pd.read_parquet(prepared / "images.parquet")["image_id"].tolist()
        found = read_list(card, root).among(images)
        assert len(found) > 10
        # An image without a sentence, a label and a box has no place in a set.
        assert found.count("") <= 1


# ------------------------------------------------------------------------------------------ lists

NIH = find_card("chestxray14/zero-shot")


def with_list(card: Card = NIH, **wanted) -> Card:
    data = card.data.model_copy(update={"list": card.data.list.model_copy(update=wanted)})
    return card.model_copy(update={"data": data})


def test_a_list_is_named_by_its_ids_in_any_order_and_another_release_is_refused(tmp_path):
    (tmp_path / "test_list.txt").write_text("b/2.png\n1.png\n\n1.png\n")
    assert list_hash(["b", "a", "a"]) == list_hash(["a", "b"]) != list_hash(["ab"])
    known = read_list(with_list(images=2, hash=list_hash(["1", "b/2"])), tmp_path)
    assert known.names == ("b/2", "1")
    assert known.among(["x/b/2", "3"]) == ["x/b/2", ""]
    with pytest.raises(UserError, match=r"another release: it has 2 images .* of 25596 images"):
        read_list(NIH, tmp_path)
    with pytest.raises(UserError, match=r"another release: .* of the hash 0123456789abcdef"):
        read_list(with_list(images=2, hash="0123456789abcdef"), tmp_path)


@pytest.mark.parametrize(("missing", "status"), [(2, "complete"), (3, "incomplete")])
def test_more_than_one_percent_missing_is_incomplete(missing, status):
    base = {"archive": "a", "set_hash": "", "list_hash": ""}
    assert Judged(**base, wanted=200, found=200 - missing, missing=missing).status == status
    boxes = Judged(**base, wanted=9, found=9, boxes=200 - missing, boxes_wanted=200)
    assert boxes.status == status


TABLE = "Path,who\na/1.jpg,Physician\na\\2.dcm,physician\na/3.jpg,RNN\n,Physician\n"


@pytest.mark.parametrize(
    ("file", "text", "wanted", "names"),
    [
        ("t.csv", TABLE, {"column": "Path", "where": {"who": "physician"}}, ("a/1", "a/2")),
        ("t.json", '[{"n": "3.png"}, {"n": "1.2.3"}]', {"column": "n"}, ("3", "1.2.3")),
        ("k.json", '{"patient1_view1_frontal": {}}', {}, ("patient1_view1_frontal",)),
    ],
)
def test_rows_of_a_table_and_entries_of_a_json_are_names(tmp_path, file, text, wanted, names):
    (tmp_path / file).write_text(text)
    card = with_list(file=file, images=None, **wanted)
    assert read_list(card, tmp_path).names == names


# ----------------------------------------------------------------------------- lists made by a rule


class Few(Source):
    """Studies of the given labels, one frontal and one lateral image each."""

    kind = "few"

    def __init__(self, labels: list[dict[str, float | None]]) -> None:
        self.labels = labels

    def images(self) -> list[ImageRecord]:
        return [
            ImageRecord(
                f"{n}{view}", f"s{n}", f"p{n}", Path("x"), view, "train" if n % 2 else "test"
            )
            for n in range(len(self.labels))
            for view in ("PA", "LATERAL")
        ]

    def studies(self, only=None):
        del only
        for n, labels in enumerate(self.labels):
            yield StudyRecord(f"s{n}", f"p{n}", "test", None, labels)


def test_five_by_200_takes_images_of_one_class_and_no_other_label(tmp_path):
    alone = [{name: 1.0, "No Finding": None, "Fracture": 0.0} for name in FIVE for _ in range(6)]
    mixed = [
        {"Edema": 1.0, "Fracture": 1.0},
        {"Edema": 1.0, "Pneumonia": -1.0},
        {"Edema": 1.0, "Cardiomegaly": 1.0},
        {"Pneumonia": 1.0},
    ]
    found = five_by_count(Few(mixed + alone), tmp_path / "five.csv", count=4)
    table = pd.read_csv(tmp_path / "five.csv", dtype=str)
    assert table["class"].value_counts().to_dict() == dict.fromkeys(FIVE, 4)
    for name, of_class in zip(table["image_id"], table["class"], strict=True):
        labels = (mixed + alone)[int(name.removesuffix("PA"))]
        assert [key for key, value in labels.items() if value] == [of_class]
    # Three of each six are of training: the others come first.
    assert found == {name: {"candidates": 6, "of_training": 1} for name in FIVE}
    with pytest.raises(UserError, match="'Atelectasis' has 6 frontal images"):
        five_by_count(Few(alone), tmp_path / "no.csv", count=7)
    assert not (tmp_path / "no.csv").exists()


def test_single_boxes_are_images_with_one_box_in_all(tmp_path, capsys):
    every, one = tmp_path / "all.json", tmp_path / "one.json"

    def write(*entries):
        """Annotations of images, each of a split."""
        box = {"category_id": 1, "bbox": [0, 0, 1, 1]}
        boxes = [box | {"image_id": image, "split": split} for image, split in entries]
        content = {
            "images": [{"id": n, "file_name": f"{n}.jpg"} for n in range(5)],
            "annotations": [entry | {"id": n} for n, entry in enumerate(boxes)],
            "categories": [{"id": 1}],
        }
        every.write_text(json.dumps(content))

    # Image 1 has two boxes, image 2 is of another split, image 3 has its second box in training.
    write((0, "test"), (1, "test"), (1, "test"), (2, "val"), (3, "test"), (3, "train"))
    assert single_box(every, one) == {"images": 5, "annotations": 6, "of_split": 4, "kept": 1}
    content = json.loads(one.read_text())
    assert [image["id"] for image in content["images"]] == [0]
    assert [entry["id"] for entry in content["annotations"]] == [0]
    write((0, "train"))
    assert run_script(app, ["single-box", str(every), str(one)]) == 2
    assert "no image of the split 'test' has one box" in capsys.readouterr().err

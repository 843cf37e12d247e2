"""The report says what the run's files say, stands alone, and names what is missing."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
import yaml
from PIL import Image

from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.reporting import plots
from medclip_debias.reporting.report import write_report
from medclip_debias.reporting.run_files import read_metrics
from tests.helpers.results import row, rows
from tests.reporting.test_pages import check

NO_PNEUMONIA = {"reason": "one label value only", "positive": 0, "negative": 88, "left_out": 12}
RESULTS = {
    "format": 3,
    "split": "test",
    "metrics": [
        row("zero_shot", "mean_auc", 0.91234, (0.88, 0.94)),
        *rows("zero_shot", {"accuracy": 0.7, "balanced_accuracy": 0.72}),
        *rows("grounding", {"cnr_signed": 1.1, "miou_middle": 0.21, "area": 0.174}),
        row("zero_shot", "auc", 0.93456, (0.9, 0.97), "Edema"),
        row("grounding", "cnr", 1.2345, (1.1, 1.4)),
        row("grounding", "miou", 0.1784, (0.17, 0.19)),
        row("grounding", "pointing_game", 0.5, (0.4, 0.6)),
        row("grounding", "miou", 0.0891, group="chance"),
    ],
    "details": {
        "zero_shot": {
            "classes": {"Edema": {"positive": 31, "negative": 62, "left_out": 7}},
            "refused": {"Pneumonia": NO_PNEUMONIA},
        },
        "grounding": {"phrases": 1162},
    },
    "skipped": {"retrieval": "Retrieval needs at least two phrases."},
    "options": {"bootstrap": {"resamples": 1000}},
    "data_hash": "abc123",
    "model_hash": "feed0123",
    "seed": 0,
    "prompts": {"classes": {"Edema": {"positive": ["Pulmonary edema"], "negative": ["No edema"]}}},
    "versions": {"torch": "2.0"},
    "data": {
        "source": "phantom",
        "counts": {"images": 1531},
        "splits": {"test": 100, "train": 1431},
        "funnel": [{"step": "view is frontal", "unit": "images", "kept": 1541, "dropped": 175}],
    },
    "timing": {"evaluate": 75.0},
}
SETTINGS = """
prepared: data/prepared
out: runs/x
model: {image: {arch: resnet18, weights: null}, text: {folder: lm}, dim: 128}
loss: {kind: debiased, eta: {kind: language_model}}
train: {steps: 1000, batch_size: 64, lr: 1.0e-5, seed: 0}
"""


def test_results_of_an_earlier_training_are_said_to_be(tmp_path):
    trained = yaml.safe_load(SETTINGS)
    for lr, known in ((1e-5, True), (3e-5, False)):  # of workers nothing follows
        provenance = trained | {"train": trained["train"] | {"lr": lr, "workers": 2}}
        results = RESULTS | {"model": {"provenance": provenance}, "notes": ["Other."]}
        words = text_of(write_report(write_run(tmp_path / f"{lr}", results, heatmaps=0)))
        assert "Note. Other." in words
        assert ("a model that was trained otherwise (train.lr) than this run" in words) != known


def text_of(report: Path) -> str:
    """The words of a page."""
    words = re.sub(r"<(style|title).*?</\1>|<[^>]+>", " ", report.read_text(), flags=re.S)
    return re.sub(r"\s+", " ", html.unescape(words))


def write_run(folder: Path, results=RESULTS, settings=SETTINGS, heatmaps=13) -> Path:
    folder.mkdir(parents=True)
    if settings:
        (folder / "settings.yaml").write_text(settings)
        lines = ["step,loss,lr,scale,clamped,mean_eta,positive_similarity,negative_similarity"]
        lines += [f"{20 * k},{4 - k / 10},1e-5,14,0.1,,0.{k},0.01" for k in range(1, 9)]
        (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    if results:
        (folder / "results.json").write_text(json.dumps(results))
    if results and heatmaps:
        (folder / "heatmaps").mkdir()
        values = {"cnr": 1.0, "cnr_signed": 0.9, "miou": 0.2, "pointing_game": 1.0}
        items = [
            {"file": f"{k}.png", "text": f"Sentence {k} <b>&", "category": "Edema"} | values
            for k in range(heatmaps)
        ]
        for k, item in enumerate(items):
            Image.new("RGB", (4, 4), (k, 0, 0)).save(folder / "heatmaps" / item["file"])
        index = {"choice": "In the order of the ids.", "items": items}
        (folder / "heatmaps" / "index.json").write_text(json.dumps(index))
    return folder


def test_headlines_stand_beside_what_is_had_without_skill(tmp_path):
    named = {"place prior": 2.02, "other images' boxes": 0.49}
    floors = [row("grounding", "cnr", value, group=name) for name, value in named.items()]
    run = write_run(
        tmp_path / "run", RESULTS | {"metrics": [*RESULTS["metrics"], *floors]}, heatmaps=0
    )
    tiles, rest = text_of(write_report(run)).split("Contents", 1)
    assert "Zero-shot AUC 0.912 95%: 0.880 to 0.940 without skill: 0.500" in tiles
    beside = "other images' boxes 0.49; place prior 2.02"
    assert f"without skill: {beside}" in tiles
    assert f"1.10 to 1.40 {beside}" in rest


def test_the_page_shows_figures_the_papers_beside_them_and_needs_nothing_else(tmp_path):
    report = write_report(write_run(tmp_path / "run"))
    page, text = report.read_text(), text_of(report)
    for words in (
        *("0.880 to 0.940", "0.178", "0.935"),
        "Pneumonia: one label value only (0 present, 88 absent, 12 left out).",
        "Retrieval needs at least two phrases.",
        *("1,531 images", "feed0123", "abc123"),
        "1,000 steps of AdamW with batches of 64 studies",
    ):
        assert words in text, words
    rows = re.findall(
        r"<tr><th scope=\"row\">([^<]+)</th>\s*(<td class=\"num main.*?)</tr>", page, flags=re.S
    )
    cells = {name: re.findall(r"<td[^>]*>(.*?)</td>", rest) for name, rest in rows}
    assert cells["CNR"][-2:] == ["1.40", "1.49"]
    assert "Sentence 3 &lt;b&gt;&amp;" in page  # sentences are text, never markup
    assert "<b>&" not in page
    assert len(check(page).links) > 6
    pictures = re.findall(r'(?:src|srcset|action)="([^"]*)"', page)
    assert len(pictures) == len(set(pictures)) == 13
    assert all(address.startswith("data:image/png;base64,") for address in pictures)
    assert not re.search(r"<(script|link|iframe)\b", page)


LINKED = ["heatmaps/0.png", "heatmaps/index.json", "settings.yaml"]


@pytest.mark.parametrize("name", LINKED)
def test_a_link_in_a_shared_run_shows_no_file_of_ones_own(tmp_path, name):
    run = write_run(tmp_path / "run")
    secret = tmp_path / "secret"
    secret.write_bytes((run / name).read_bytes())
    (run / name).unlink()
    (run / name).symlink_to(secret)
    with pytest.raises(UserError, match=f"{name}: is a link to another file"):
        write_report(run)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(("right", "wrong"), [(6, 7), (0, 1)])
def test_the_report_opens_with_four_right_and_four_wrong_by_its_rule(tmp_path, right, wrong):
    run = write_run(tmp_path / "run", heatmaps=right + wrong)
    index = run / "heatmaps" / "index.json"
    content = json.loads(index.read_text())
    for place, item in enumerate(content["items"]):  # right and wrong by turns, then the rest
        item["pointing_game"] = float(place % 2 if place < 2 * right else 0)
        item["text"] = f"{'Right' if item['pointing_game'] else 'Wrong'} {place}."
    index.write_text(json.dumps(content))
    text = text_of(write_report(run)).split("The first four of")[0]
    order = [item["text"] for item in content["items"]]
    for word, count in (("Right", right), ("Wrong", wrong)):
        fitting = [words for words in order if words.startswith(word)]
        assert len(fitting) == count
        assert re.findall(rf"{word} \d+\.", text) == fitting[:4]
        assert f"({count} of {right + wrong} pictures)" in text


def test_maps_that_were_not_validated_are_said_to_be(tmp_path):
    sentence = "This model's maps were not measured on boxes."
    maps = {"validated": False, "real": False, "phrases": 0, "boxes": 0, "sentence": sentence}
    results = RESULTS | {"maps": maps}
    page = write_report(write_run(tmp_path / "run", results=results)).read_text()
    place = page.index("This model&#39;s maps were not measured on boxes.")
    assert page.index(">Where the model looks</h2>") < place < page.index("<img")


@pytest.mark.parametrize("value", [-0.5, 0.0, 2.0])
def test_a_single_value_lies_within_its_plot(value, monkeypatch):
    monkeypatch.setattr(plots, "_drawn", lambda _, axes, *words: axes)
    low, high = plots.curve([20.0], [value], "one").get_ylim()
    assert low <= value < high or low < value <= high


def test_a_run_that_was_not_evaluated_says_what_to_run(tmp_path):
    run = write_run(tmp_path / "run", results=None)
    text = text_of(write_report(run))
    assert f"medclip-debias evaluate {run}/model data/prepared --out {run}" in text
    assert "Loss: 3.2 at the end" in text


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("heatmaps/3.png", "root:x:0:0", r"3\.png: is not a PNG picture"),
        ("heatmaps/3.png", None, r"3\.png: this picture is missing"),
        (
            *("heatmaps/index.json", json.dumps({"items": [{"miou": "high"}]})),
            r"index\.json: .*number",
        ),
    ],
)
def test_files_beside_a_run_that_are_damaged_are_refused(tmp_path, name, content, sentence):
    run = write_run(tmp_path / "run")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    if content:
        (run / name).write_text(content)
    with pytest.raises(UserError, match=sentence):
        write_report(run)
    assert not (run / "report.html").exists()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a run folder"):
        write_report(tmp_path)


def test_gaps_in_the_metrics_are_gaps_and_a_row_that_is_cut_off_is_skipped(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss,eta\n1,2.5,\n2,nan,0.1\n3,")
    with pytest.warns(ReportedWarning, match="its last row is incomplete and was skipped"):
        found = read_metrics(path)
    assert found == {"step": [1, 2], "loss": [2.5, None], "eta": [None, 0.1]}

"""The report says what the run's files say, stands alone, and names what is missing."""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path

import pytest
import yaml
from PIL import Image

from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.reporting.report import write_report
from medclip_debias.reporting.run_files import read_metrics, read_run
from tests.helpers.results import row, rows
from tests.reporting.test_pages import check

RESULTS = {
    "format": 3,
    "split": "test",
    "metrics": [
        row("zero_shot", "mean_auc", 0.91234, (0.88, 0.94)),
        *rows("zero_shot", {"accuracy": 0.7, "balanced_accuracy": 0.72}),
        row("zero_shot", "auc", 0.93456, (0.9, 0.97), "Edema"),
        row("zero_shot", "accuracy", 0.75, (0.7, 0.8), "Edema"),
        row("zero_shot", "balanced_accuracy", 0.74, of_class="Edema"),
        row("grounding", "cnr", 1.2345, (1.1, 1.4)),
        row("grounding", "cnr_signed", 1.1, (1.0, 1.2)),
        row("grounding", "miou", 0.1784, (0.17, 0.19)),
        row("grounding", "miou_middle", 0.21, (0.2, 0.22)),
        row("grounding", "pointing_game", 0.5, (0.4, 0.6)),
        row("grounding", "area", 0.174),
        *rows("grounding", {"miou": 0.0891, "pointing_game": 0.174}, group="chance"),
    ],
    "details": {
        "zero_shot": {
            "classes": {
                "Edema": {
                    **{"images": 100, "positive": 31, "negative": 62, "uncertain": 4},
                    **{"blank": 3, "left_out": 7},
                }
            },
            "refused": {
                "Pneumonia": {
                    "reason": "one label value only",
                    **{"positive": 0, "negative": 88, "left_out": 12},
                }
            },
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
    for lr, workers, known in ((1e-5, 2, True), (3e-5, 0, False)):
        train = trained["train"] | {"lr": lr, "workers": workers}
        provenance = trained | {"train": train, "synthetic": False}
        results = RESULTS | {"model": {"provenance": provenance}, "notes": ["Other."]}
        run = write_run(
            tmp_path / f"{lr}", results, SETTINGS.replace("seed: 0", "seed: 0, workers: 1")
        )
        words = text_of(write_report(run))
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
        items = []
        for k in range(heatmaps):
            Image.new("RGB", (4, 4), (k, 0, 0)).save(folder / "heatmaps" / f"{k}.png")
            items.append(
                {"file": f"{k}.png", "text": f"Sentence {k} <b>&", "category": "Edema"}
                | {"cnr": 1.0, "cnr_signed": 0.9, "miou": 0.2, "pointing_game": 1.0}
            )
        index = {"choice": "In the order of the ids.", "items": items}
        (folder / "heatmaps" / "index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a whole run."""
    run = write_run(tmp_path_factory.mktemp("whole") / "run")
    path = write_report(run)
    assert path == run / "report.html"
    return path


def test_headlines_stand_beside_what_is_had_without_skill(tmp_path):
    named = {"place prior": 2.02, "other images' boxes": 0.49}
    floors = [row("grounding", "cnr", value, group=name) for name, value in named.items()]
    content = RESULTS | {"metrics": [*RESULTS["metrics"], *floors]}
    tiles, rest = text_of(write_report(write_run(tmp_path / "run", content))).split("Contents", 1)
    assert "Zero-shot AUC 0.912 95%: 0.880 to 0.940 without skill: 0.500" in tiles
    beside = "other images' boxes 0.49; place prior 2.02"
    assert f"without skill: {beside}" in tiles
    assert f"1.10 to 1.40 {beside}" in rest


def test_a_heatmap_is_seen_large_when_it_is_chosen(chromium, report):
    page = chromium.new_page(viewport={"width": 1200, "height": 900})
    page.goto(report.as_uri())
    picture = page.locator(".pictures figure").first
    small = picture.locator("img").bounding_box()
    picture.click()
    large = picture.locator("img").bounding_box()
    assert large["width"] > 1100 > 300 > small["width"]


def test_the_figures_stand_in_the_page(report):
    text = text_of(report)
    for words in (
        "0.912",
        "0.880 to 0.940",
        "1.23",
        "0.178",
        "0.089",  # what an all-zero map gets
        "0.935",  # Edema's AUC
        "Pneumonia: one label value only (0 present, 88 absent, 12 left out).",
        "Retrieval needs at least two phrases.",
        "view is frontal",
        "1,541",
        "1 min 15 s",
        "feed0123",
        "abc123",
        "Pulmonary edema",
        "1,531 images",
        "debiased (eta: language_model)",
        "1,000 steps of AdamW with batches of 64 studies",
        "not comparable",
        "loss: {kind: debiased",
        "In the order of the ids.",
    ):
        assert words in text, words


LINKED = ["heatmaps/0.png", "heatmaps/index.json", "settings.yaml", "results.json"]


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


def test_the_paper_stands_beside_its_own_metrics_only(report):
    page = report.read_text()
    rows = re.findall(
        r"<tr><th scope=\"row\">([^<]+)</th>\s*(<td class=\"num main.*?)</tr>", page, flags=re.S
    )
    cells = {name: re.findall(r"<td[^>]*>(.*?)</td>", rest) for name, rest in rows}
    assert cells["CNR"][-2:] == ["1.40", "1.49"]
    assert cells["mIoU"][-2:] == ["0.19", "0.20"]
    assert cells["Zero-shot AUC"][-2:] == ["0.79", "0.86"]
    assert cells["Balanced accuracy"][-2:] == ["\N{EN DASH}"] * 2
    assert "BioViL" in page


@pytest.mark.parametrize(("right", "wrong"), [(6, 7), (2, 5), (0, 1)])
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
    validated = RESULTS | {"maps": maps | {"validated": True, "sentence": None}}
    assert "not measured" not in write_report(write_run(tmp_path / "b", validated)).read_text()


def test_the_page_needs_nothing_else(report):
    page = report.read_text()
    assert "Sentence 3 &lt;b&gt;&amp;" in page  # sentences are text, never markup
    assert "<b>&" not in page
    assert len(check(page).links) > 6
    pictures = re.findall(r'(?:src|srcset|action)="([^"]*)"', page)
    assert len(pictures) == len(set(pictures)) == 13
    assert page.count("<svg") == 5
    for address in pictures:
        kind, _, content = address.partition(";base64,")
        assert kind == "data:image/png"
        base64.b64decode(content, validate=True)
    assert not re.search(r"<(script|link|iframe)\b", page)


def test_a_run_that_was_not_evaluated_says_what_to_run(tmp_path):
    run = write_run(tmp_path / "run", results=None)
    text = text_of(write_report(run))
    assert f"medclip-debias evaluate {run}/model data/prepared --out {run}" in text
    assert "Loss: 3.2 at the end" in text
    assert "resnet18" in text


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        write_report(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="is not a run folder"):
        write_report(tmp_path / "empty")
    run = write_run(tmp_path / "run")
    (run / "results.json").write_text("{")
    with pytest.raises(UserError, match=r"results\.json: cannot be read as JSON"):
        write_report(run)
    (run / "results.json").write_text(json.dumps(RESULTS))
    (run / "heatmaps" / "3.png").write_text("root:x:0:0")
    with pytest.raises(UserError, match=r"3\.png: is not a PNG picture"):
        write_report(run)
    (run / "heatmaps" / "3.png").unlink()
    with pytest.raises(UserError, match=r"3\.png: this picture is missing"):
        write_report(run)
    assert not (run / "report.html").exists()


def test_gaps_in_the_metrics_are_gaps_not_zeros(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss,eta\n1,2.5,\n2,nan,0.1\n")
    assert read_metrics(path) == {"step": [1, 2], "loss": [2.5, None], "eta": [None, 0.1]}
    path.write_text("step,loss\n")
    assert read_metrics(path) == {}
    assert read_metrics(tmp_path / "absent.csv") == {}


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("metrics.csv", lambda text: text[:-5], "its last row is incomplete and was skipped"),
        ("metrics.csv", lambda text: "", "holds no rows, so the report has no curves"),
        ("settings.yaml", lambda text: "", "is incomplete; the report shows what is there"),
    ],
)
def test_what_is_cut_off_is_said(tmp_path, name, damage, sentence):
    (tmp_path / "settings.yaml").write_text("train: {steps: 2}\nprovenance: {data_hash: a}\n")
    (tmp_path / "metrics.csv").write_text("step,loss\n1,2.0\n2,1.5\n3,1.0\n")
    path = tmp_path / name
    path.write_text(damage(path.read_text()))
    with pytest.warns(ReportedWarning, match=sentence) as caught:
        parts = read_run(tmp_path)
    assert len(caught) == 1
    if name == "metrics.csv":
        assert parts["metrics"].get("loss", []) in ([], [2.0, 1.5])


def test_metrics_that_are_no_table_are_one_sentence(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match=r"metrics\.csv: cannot be read as a table"):
        read_metrics(path)

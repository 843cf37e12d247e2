"""What `make real` does with a folder of archives, on two small ones that are made up."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import real_job
import real_report
from commands import run_script
from medclip_debias.cli import run
from medclip_debias.cli.stages import run_stages
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.table import read_results
from medclip_debias.settings_files import apply_overrides
from medclip_debias.training.resolve import load_run
from medclip_debias.training.step import Trainer
from studies.classifier import fit
from studies.real_supervised import targets

LABELS = ("Cardiomegaly", "Effusion|Edema", "No Finding", "Mass")
TINY = real_job.Plan(
    language_model=2, pretrain=1, train=1, bootstrap=0, least=2, explanations=("gradcam",)
)
FEW = ["train.batch_size=16", "train.workers=0"]
SMALL = {  # behind a command of these words: not films of 128 pixels and batches of 64 studies
    "language-model": ["hidden=16", "layers=1"],
    "real/pretrain": [
        *("preprocessing.prepare.size=48", "preprocessing.input_size=40"),
        *("model.image.arch=resnet_tiny", *FEW),
    ],
    "real/joint": FEW,
    "evaluate": ["--heatmaps", "0"],
}


def small(words):
    """Do a stage's command on small films, with a small network."""
    more = [setting for word in words[:2] for setting in SMALL.get(word, [])]
    return run(["48" if word == "128" else word for word in [*words, *more]])


@pytest.fixture
def archives(nih_folder, tmp_path):
    """A folder of films with labels and boxes, of films with reports, and of something else."""
    images = {f"{n:08d}_000": (LABELS[n % 4], "train") for n in range(1, 60)}
    images |= {f"{n:08d}_000": (LABELS[n % 4], "test") for n in range(70, 86)}
    folder = nih_folder("archives/labels", images)
    boxes = ["image,source,finding,x,y,width,height"]
    boxes += [f"{n:08d}_000.png,Others,Effusion,2,3,8.5,6" for n in (*range(1, 20), *range(70, 86))]
    boxes += ["99999999_000.png,Others,Mass,1,1,2,2", "00000071_000.png,Else,Mass,1,1,4,4"]
    (folder / "boxes.csv").write_text("\n".join([*boxes, ""]))
    own = ["Image Index,Finding Label,Bbox [x,y,w,h],,,"]
    own += [f"{n:08d}_000.png,Mass,1,2,5,4,,," for n in (30, 70, 71)]
    (folder / "BBox_List_2017.csv").write_text("\n".join([*own, ""]))
    reports = nih_folder("archives/reports", {f"{n:08d}_000": ("", "") for n in range(1, 81)})
    (reports / "Data_Entry_2017.csv").unlink()
    rows = ["image,patient_id,study_id,view,split,report"]
    for n in range(1, 81):
        split = "test" if n > 70 else "train"
        text = "The heart is enlarged." if n % 2 else "There is a left effusion. No mass."
        rows.append(f"images/{n:08d}_000.png,{n},s{n},PA,{split},{text}")
    (reports / "manifest.csv").write_text("\n".join([*rows, ""]))
    (tmp_path / "archives" / "letters").mkdir()
    (tmp_path / "archives" / "letters" / "a.txt").write_text("nothing")
    return tmp_path / "archives"


def test_it_goes_from_a_folder_to_a_page_and_goes_on_where_it_stopped(
    archives, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(real_job, "run", small)  # of the stage of other maps
    out = tmp_path / "real"
    assert load_run(Path("real/pretrain")).preprocessing.prepare.size == 128  # as it is prepared
    run_stages(real_job.stages(archives, out, TINY), out, small)
    told, said = capsys.readouterr()
    assert "# letters: left aside" in told
    assert "# labels/boxes.csv: skipped 1 boxes of images that are not here" in told
    assert "found 2 archives: labels (chestxray14), reports (manifest)" in told
    page = (out / "report.html").read_text()
    for title in ("Zero-shot", "Grounding", "Retrieval", "Calibration across archives"):
        assert title in page
    maps = page.partition("Grounding</h2>")[2].partition("</section>")[0]
    assert "<details" not in maps  # a reader sees the numbers without a click
    for boxes in ("labels", "labels-Others", "labels-gradcam"):
        assert maps.count(f">{boxes}<") == maps.count("<table") == 3
    rows = json.loads((out / "results.json").read_text())["metrics"]
    judged = read_results(out / "archives" / "labels" / "results.json")
    mean = [r for r in rows if r["archive"] == "labels" and r["metric"] == "mean_auc"]
    assert mean[0]["value"] == judged.value("zero_shot", "mean_auc")
    boxes = read_results(out / "archives" / "labels-Others" / "results.json")
    assert boxes.details("grounding")["phrases"] == 16
    explained = read_results(out / "archives" / "labels-gradcam" / "results.json")
    assert explained.details("grounding")["phrases"] == 2  # on the archive's own boxes
    trained = json.loads((out / "archives" / "labels" / "results.json").read_text())["archives"]
    assert trained["relation"] == "same set"
    learned_by_a_classifier(out)
    training = PreparedSet.open(out / "prepared" / "labels").images.query("split == 'train'")
    other_groups = training["image_id"].between("00000001_000", "00000019_000")
    taught = (other_groups | (training["image_id"] == "00000030_000")).sum()  # and the own ones
    assert f"boxes of {taught} phrases on {taught} images teach" in said
    model = (out / "model" / "model.safetensors").stat().st_mtime_ns
    run_stages(real_job.stages(archives, out, TINY), out, small)
    again = capsys.readouterr().out
    assert "is there already" in again
    assert (out / "model" / "model.safetensors").stat().st_mtime_ns == model
    reports_have_half_of_the_batches_and_films_count_alike_alone(out / "prepared", monkeypatch)
    boxes_of_test_films_alone_teach_nothing(out)
    the_page_is_written_again(out, capsys)


def the_page_is_written_again(out, capsys):
    """By the command that a run prints; of another folder it says what is missing."""
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    assert run_script(real_report.main, [str(out)]) == 0
    assert (out / "report.html").read_text() == page
    (out / "calibration.json").unlink()
    capsys.readouterr()
    for folder, said in (
        (out, "calibration.json: there is no"),
        (out / "boxes", "is no folder of"),
    ):
        assert run_script(real_report.main, [str(folder)]) == 2
        assert said in capsys.readouterr().err


def boxes_of_test_films_alone_teach_nothing(out):
    """And the training is one without boxes, not one that is refused."""
    prepared = {"reports": out / "prepared" / "reports"}  # the same films, without boxes
    for group, teaches in (("Others", True), ("Else", False)):  # Else has boxes of a test film
        boxes = {"reports": [out / "boxes" / f"labels-{group}.json"]}
        words = real_job.joint_words(prepared, boxes)
        run_of = load_run("phantom/base", words)
        assert bool(run_of.train.boxes) == teaches
        assert any(each.boxes for each in run_of.prepared) == teaches


def learned_by_a_classifier(out):
    """Targets of the joint run's studies: claims of reports, labels where there is no report."""
    trainer = Trainer(load_run(out))
    classes = ["Cardiomegaly", "Pleural Effusion", "Infiltration"]
    wanted = targets(trainer, ["labels"], classes).numpy()
    firsts = [int(rows[0]) for rows in trainer.studies.rows]
    images = trainer.prepared.images["image_id"].iloc[firsts]
    numbers = images.str.extract(r"(\d{8})_000")[0].astype(int).to_numpy()
    reports = images.str.startswith("reports/").to_numpy()
    odd = numbers[reports] % 2
    assert (wanted[reports, 0] == odd).all()
    assert (wanted[reports, 1] == 1 - odd).all()
    assert np.isnan(wanted[reports, 2]).all()  # none of the lexicon's findings by that name
    assert (wanted[~reports, 0] == (numbers[~reports] % 4 == 0)).all()
    assert (wanted[~reports, 1] == (numbers[~reports] % 4 == 1)).all()
    network = fit(trainer, torch.from_numpy(wanted))
    assert network(trainer.batches[0].images).shape == (len(trainer.batches[0].images), 3)


def reports_have_half_of_the_batches_and_films_count_alike_alone(folder, monkeypatch):
    prepared = {name: folder / name for name in ("labels", "reports")}
    assert "batches" not in real_job.weighted_sets(prepared, text=True)  # too few for their own
    monkeypatch.setattr(real_job, "BATCH", 32)
    weights, batches = {}, {}
    for text in (True, False):
        setting = f"prepared={real_job.weighted_sets(prepared, text=text)}"
        sets = apply_overrides({}, [setting])["prepared"]
        weights[text] = {each["path"].rsplit("/")[-1]: each["weight"] for each in sets}
        batches[text] = [each.get("batches") for each in sets]
    assert weights[True] == {"labels": 1.0, "reports": 1.0}
    assert batches == {True: ["labels", "reports"], False: [None, None]}
    films = {
        name: (PreparedSet.open(path).images["split"] == "train").sum()
        for name, path in prepared.items()
    }
    total = sum(films.values())
    assert weights[False] == {n: pytest.approx(k / total, abs=1e-4) for n, k in films.items()}


def test_boxes_of_other_groups_keep_their_places_and_a_bad_table_is_one_sentence(
    archives, tmp_path
):
    archive = next(a for a in real_job.find_archives(archives) if a.name == "labels")
    files = dict(real_job.coco_boxes(archive, tmp_path / "boxes"))
    assert files.keys() == {"Others", "Else"}
    content = json.loads(files["Others"].read_text())
    assert len(content["images"]) == len(content["annotations"]) == 35  # one film is not there
    assert {(image["width"], image["height"]) for image in content["images"]} == {(24, 24)}
    boxes = np.array([each["bbox"] for each in content["annotations"]])
    assert (boxes == [2, 3, 8.5, 6]).all()
    assert {each["label_text"] for each in content["annotations"]} == {"Pleural effusion."}
    head, film = "image,source,finding,x,y,width", "00000071_000.png"
    for table, wrong in (
        (f"{head}\n", "column 'height' is missing"),
        (f"{head},height\n{film},Others,Mass,1,1,2,wide\n", "row 2"),
        (f"{head},height\n{film},Others,Mass,1\n", "row 2"),
    ):
        archive.box_files.write_text(table)
        with pytest.raises(UserError, match=wrong):
            list(real_job.coco_boxes(archive, tmp_path / "boxes"))


def test_links_and_folders_of_others_are_left_aside_and_two_archives_have_two_names(
    archives, capsys, monkeypatch
):
    (archives / "a link").symlink_to(archives / "labels")
    (archives / "loop").symlink_to(archives)
    detect = real_job.detect

    def closed(folder):
        if folder.name == "letters":
            raise PermissionError(13, "Permission denied", str(folder))
        return detect(folder)

    monkeypatch.setattr(real_job, "detect", closed)
    assert [a.name for a in real_job.find_archives(archives)] == ["labels", "reports"]
    told = capsys.readouterr().out
    assert "# a link: left aside (a link to labels, which is here already)" in told
    assert "# loop: left aside (a link to archives, which is here already)" in told
    assert "# letters: left aside ([Errno 13] Permission denied" in told
    archives.joinpath("reports").rename(archives / "labels" / "labels")
    real_job.find_archives(archives / "labels")
    assert "# labels: left aside (" in capsys.readouterr().out  # two releases in one
    one = SimpleNamespace(kind="manifest", images=lambda: [SimpleNamespace(split="test")])
    monkeypatch.setattr(real_job, "detect", lambda _: one)
    with pytest.raises(UserError, match="labels/labels: has the name of the archive"):
        real_job.find_archives(archives / "labels")


@pytest.mark.parametrize("name", ["NIH, part 1", "a: b", "films #2", "x]y"])
def test_any_name_of_a_folder_is_a_path_and_a_small_archive_has_a_share(name, monkeypatch):
    counts = {name: 10, "large": 400_000, "judged": 0}
    monkeypatch.setattr(real_job.PreparedSet, "open", lambda path: counts[path.name])
    monkeypatch.setattr(real_job.TrainingStudies, "of", lambda count, text: range(count))
    monkeypatch.setattr(real_job, "has_reports", lambda _: False)
    setting = real_job.weighted_sets({each: Path("runs") / each for each in counts}, text=True)
    sets = apply_overrides({}, [f"prepared={setting}"])["prepared"]
    assert [each["path"] for each in sets] == [f"runs/{each}" for each in counts]
    assert [each["weight"] for each in sets] == [0.0001, 1.0, 0.0]


def test_a_folder_without_archives_is_one_sentence(tmp_path):
    for name, wrong in (("none", "no such folder"), ("", "holds no archive that 'prepare' knows")):
        with pytest.raises(UserError, match=wrong):
            real_job.find_archives(tmp_path / name)

"""A run on several prepared sets: resumed it is the same, and it validates on each of them."""

from __future__ import annotations

import os
import signal

import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims.table import claim_set
from medclip_debias.errors import UserError
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.validation import validator_of
from medclip_debias.reporting.report import write_report
from medclip_debias.training.resolve import load_run
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.train import train
from tests.training.conftest import same, table, weights

CLAIMS = {"kind": "multi_positive", "core": {"kind": "infonce"}, "evidence": {"kind": "claims"}}
FINDINGS = ("Mass", "No Finding", "Cardiomegaly|Effusion", "Pneumonia", "Edema|Atelectasis")


@pytest.fixture
def joint_run(run, prepared_phantom, nih_folder, tmp_path):
    """A function: settings of a run on the phantom and on films with labels alone."""
    labelled = tmp_path / "nih-set"
    images = {f"{n:08d}_000": (FINDINGS[n % 5], "train") for n in range(1, 60)}
    size = PreparedSet.open(prepared_phantom).settings.size
    reading = Reading(label_sentences=True)
    prepare(
        nih_folder("nih", images), labelled, PrepareSettings(size=size), reading=reading, workers=1
    )
    phantom = tmp_path / "phantom"
    phantom.mkdir()
    for file in prepared_phantom.iterdir():
        if file.is_file():
            os.link(file, phantom / file.name)
    for path in (phantom, labelled):
        claim_set(path)

    def make(out, first=2.0, **train):
        plain = run(out, CLAIMS, **train).model_dump(mode="json")
        sets = [{"path": str(phantom), "weight": first}, str(labelled)]
        return RunSettings.model_validate(plain | {"prepared": sets})

    return make


def test_killed_after_any_step_it_resumes_to_the_same_weights(joint_run):
    whole = train(joint_run("whole"))
    broken = joint_run("broken", checkpoint_every=1)
    for killed_after in (1, 3):
        child = os.fork()
        if child == 0:  # pragma: no cover

            def kill(done, *_, at=killed_after):
                if done == at + 1:
                    os.kill(os.getpid(), signal.SIGKILL)

            train(broken, progress=kill)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    result = train(broken)
    assert result.resumed_at > 0
    assert same(weights(whole.model), weights(result.model))
    again = train(joint_run("again", log_every=3))
    assert same(weights(whole.model), weights(again.model))
    other = train(joint_run("other", first=1.0))
    assert not same(weights(whole.model), weights(other.model))
    with pytest.raises(UserError, match="began on data with the hash"):
        train(joint_run("broken", first=5.0, checkpoint_every=1, steps=6))


def test_it_validates_on_each_set(joint_run):
    settings = joint_run("run", validate_every=3, best_metric="recall_at_10")
    train(settings, validator=validator_of(settings.prepared, 64))
    rows = table(settings.out / "validation.csv")
    assert len(rows) == 2
    for row in rows:
        names = [name for name in row if name.endswith(".recall_at_10")]
        assert names
        assert float(row["recall_at_10"]) == pytest.approx(
            sum(float(row[name]) for name in names) / len(names)
        )
        assert any(name.startswith("phantom.") for name in names)
    # Its set is named in its report, and each of its sets is one that it was trained on.
    first = settings.prepared[0].path
    results = evaluate(settings.out / "model", first, settings.out, bootstrap=0, heatmaps=0)
    assert results["archives"]["relation"] == "same set"
    page = write_report(settings.out).read_text()
    assert f"{first} (weight 2), " in page
    assert "on several prepared sets" in page


def test_the_settings_of_a_file_name_the_sets(tmp_path):
    file = tmp_path / "run.yaml"
    head = f"out: {tmp_path}/out\nmodel: {{text: {{folder: lm}}}}\n"
    file.write_text(f"{head}prepared:\n  - runs/a\n  - {{path: runs/b, weight: 2.5}}\n")
    first, second = load_run(file).prepared
    assert (str(first.path), first.weight) == ("runs/a", 1)
    assert (str(second.path), second.weight) == ("runs/b", 2.5)
    assert str(load_run(file, ["prepared=runs/c"]).prepared) == "runs/c"
    for wrong, sentence in (
        ("[{path: a, wieght: 2}]", r"unknown setting 'prepared.0.wieght' \(did you mean 'weight'"),
        ("[{path: a, weight: -1}]", "setting 'prepared.0.weight' is wrong: .* greater than"),
        ("[]", "setting 'prepared' is wrong"),
    ):
        file.write_text(f"{head}prepared: {wrong}\n")
        with pytest.raises(UserError, match=sentence):
            load_run(file)

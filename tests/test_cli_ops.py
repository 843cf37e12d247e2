"""config show and doctor as commands: what they print, and what the doctor says of a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from medclip_debias.cli import run
from medclip_debias.errors import counted
from medclip_debias.training.resolve import load_run

CONFIG = Path(__file__).parents[1] / "configs" / "mimic_cxr" / "base.yaml"
PRESET = ["--loss", "sogclr"]


def shown(capsys, *words):
    capsys.readouterr()
    assert run(["config", "show", str(CONFIG), *PRESET, *words]) == 0
    return capsys.readouterr().out


def test_config_show_prints_settings_that_are_the_run(capsys, tmp_path):
    out = shown(capsys, "train.lr=3e-4", "train.seed=7")
    (tmp_path / "again.yaml").write_text(out, encoding="utf-8")
    again = load_run(tmp_path / "again.yaml")
    asked = load_run(CONFIG, ["train.lr=3e-4", "train.seed=7"], "sogclr")
    assert again.train == asked.train
    assert again.train.lr == 3e-4
    assert again.model == asked.model
    assert again.loss == asked.loss
    assert (again.loss["kind"], again.out) == ("sogclr", Path("runs/mimic_cxr/sogclr"))


def test_config_show_in_json_says_the_same(capsys):
    assert json.loads(shown(capsys, "--json")) == yaml.safe_load(shown(capsys))


def test_config_show_only_changed_leaves_the_defaults_out(capsys):
    whole, part = yaml.safe_load(shown(capsys)), yaml.safe_load(shown(capsys, "--only-changed"))
    assert "seed" in whole["train"]
    assert "seed" not in part["train"]
    assert yaml.safe_load(shown(capsys, "--only-changed", "train.seed=7"))["train"]["seed"] == 7


def test_a_folder_that_is_given_is_taken_as_it_is(capsys):
    assert yaml.safe_load(shown(capsys, "out=here"))["out"] == "here"


@pytest.mark.parametrize("verb", ["train", "doctor", "config show"])
def test_a_preset_that_is_not_there_ends_a_verb_with_one_sentence(capsys, verb):
    capsys.readouterr()
    assert run([*verb.split(), str(CONFIG), "--loss", "sogclrr"]) == 2
    *_, sentence = capsys.readouterr().err.splitlines()
    assert sentence.startswith("medclip-debias: --loss: there is no preset 'sogclrr'")
    assert "did you mean 'sogclr'" in sentence


def test_the_doctor_takes_a_preset_only_for_a_run(capsys):
    assert run(["doctor", *PRESET]) == 2
    assert "--loss sogclr: is for a run" in capsys.readouterr().err


def test_losses_lists_the_presets_with_the_rows_of_the_paper(capsys):
    capsys.readouterr()
    assert run(["losses"]) == 0
    out = capsys.readouterr().out
    assert "debiased_0.05 (row 7, debiased, eta 0.05)\n  Debiased contrastive loss" in out
    assert "xclr (not in the table)" in out


@pytest.mark.parametrize("words", [["train.lr=fast"], ["train.rate=1"], ["loss.kind=nothing"]])
def test_config_show_refuses_what_the_run_would_refuse(capsys, words):
    assert run(["config", "show", str(CONFIG), *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words[0].split("=")[0].split(".")[1] in captured.err


def test_the_doctor_looks_at_the_machine_alone_and_prints_a_table(capsys):
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split("  ")[0] for line in lines]
    assert {"versions", "codecs"} <= set(names)
    (reduced,) = (line for line in lines if line.split("  ")[0].endswith("all-reduce"))
    assert reduced.split("  ", 1)[1].split()[0] == "ok"
    assert not {"data", "step"} & set(names)
    states = [line.split("  ", 1)[1].split()[0] for line in lines[:-1] if line[0] != " "]
    assert set(states) <= {"ok", "warning"}
    summary = f"{counted(states.count('warning'), 'warning')}, 0 that would stop the run"
    assert lines[-1] == summary
    # What to do stands below every warning, in the column of what was found.
    remedies = [line for line in lines if line.lstrip().startswith("->")]
    assert len(remedies) == states.count("warning")


def test_the_doctor_refuses_a_setting_without_a_run(capsys):
    assert run(["doctor", "train.lr=1e-5"]) == 2
    assert "train.lr" in capsys.readouterr().err

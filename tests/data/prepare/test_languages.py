"""Sets of reports in another language than English: chosen by source or option, and counted."""

import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.sources.manifest import ManifestSource
from medclip_debias.data.text.reports import ReportSettings

SMALL = PrepareSettings(size=16)
SPANISH = (
    "Hallazgos: No se observa derrame en el hemitórax izq. ni infiltrados.\nConclusión: Sin"
    " hallazgos."
)
SHORT = "Hallazgos: Rx. previa normal.\nConclusión: Cardiomegalia."


@pytest.fixture
def make(tmp_path):
    """A function: the set of these reports; keywords beside those of `prepare` are of reports."""

    def make(reports, name="out", update=False, say=[].append, **text):
        rows = "".join(f's{n},"{report}",train\n' for n, report in enumerate(reports))
        (tmp_path / "manifest.csv").write_text("study_id,report,split\n" + rows, encoding="utf-8")
        reading = Reading(text_only=True, text=ReportSettings(**text))
        how = {"reading": reading, "workers": 1, "update": update, "say": say}
        return prepare(tmp_path / "manifest.csv", tmp_path / name, SMALL, **how)

    return make


def _steps(prepared):
    return {row["step"]: (row["kept"], row["dropped"]) for row in prepared.funnel}


def test_an_option_or_the_source_states_the_language_of_reports(make, monkeypatch):
    asked = make([SHORT, "Rx normal."], language="es")
    assert set(asked.sentences["section"]) == {"findings", "impression", "note"}
    assert asked.meta["languages"] == {"es": 2}
    assert asked.meta["options"]["reports"]["language"] == "es"
    monkeypatch.setattr(ManifestSource, "language", "es", raising=False)
    said = []
    prepared = make([SHORT, SPANISH], "stated", say=said.append)
    assert list(prepared.sentences["text"])[:2] == ["Rx. previa normal.", "Cardiomegalia."]
    assert set(prepared.sentences["section"]) == {"findings", "impression"}
    assert prepared.meta["languages"] == {"es": 2}
    assert "Reports by language: 2 Spanish." in said
    again = make([SHORT, SPANISH, SHORT], "stated", update=True)
    fresh = make([SHORT, SPANISH, SHORT], name="fresh")
    assert again.meta["languages"] == fresh.meta["languages"] == {"es": 3}
    assert again.content_hash == fresh.content_hash


def test_mostly_deidentified_sentences_are_dropped_by_an_option_and_counted(make):
    reports = ["FINDINGS: XXXX XXXX intact. XXXX. Lungs are clear."]
    kept = make(reports)
    assert list(kept.sentences["text"]) == ["XXXX XXXX intact.", "Lungs are clear."]
    assert _steps(kept)["sentence is not dropped as 'de-identified only'"][1] == 1
    strict = make(reports, name="strict", max_deidentified=0.5)
    assert list(strict.sentences["text"]) == ["Lungs are clear."]
    assert _steps(strict)["sentence is not dropped as 'mostly de-identified'"][1] == 1
    assert strict.meta["options"]["reports"]["max_deidentified"] == pytest.approx(0.5)

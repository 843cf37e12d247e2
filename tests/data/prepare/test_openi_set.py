"""A prepared set of Open-i: labels, locations and the named split are stored and counted."""

import numpy as np
import pytest
from PIL import Image

from medclip_debias.config import PrepareSettings
from medclip_debias.data.named_split import read_split
from medclip_debias.data.prepare import Reading, merge, prepare, prepare_part
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.verify import changes, check_sample
from medclip_debias.errors import UserError

ROWS = """uid,MeSH,Problems,image,indication,comparison,findings,impression
1,normal,x,x,,,Lungs are clear.,
2,Opacity/lung/base/left/mild,x,x,,,Mild opacity.,
3,No Indexing,x,x,,,No change.,
4,Nodule/lung/right,x,x,,,A nodule.,
"""


@pytest.fixture
def tree(tmp_path):
    """Reports 1 to 3 with an image each; report 4 has none, and so its location is in no set."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "indiana_reports.csv").write_text(ROWS)
    lines = ["uid,filename,projection"]
    for uid in (1, 2, 3):
        name = f"{uid}_IM-0001-1001.dcm.png"
        pixels = np.arange(1024, dtype=np.uint8).reshape(32, 32)
        Image.fromarray(pixels).save(folder / name)
        lines.append(f"{uid},{name},Frontal")
    (folder / "indiana_projections.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def found(tree, tmp_path):
    return prepare(tree, tmp_path / "set", PrepareSettings(size=16), workers=1)


def test_labels_and_locations_are_those_of_the_studies_of_the_set_and_counted(found):
    table = found.studies.set_index("study_id")
    assert table["No Finding"].to_dict() == pytest.approx(
        {"CXR1": 1.0, "CXR2": 0.0, "CXR3": np.nan}, nan_ok=True
    )
    assert table.loc["CXR2", "Lung Opacity"] == table.loc["CXR2", "Opacity"] == 1
    assert table.loc["CXR3"].drop(["patient_id", "split"]).isna().all()
    assert found.annotation_names == ("locations",)
    locations = found.annotations("locations")
    assert locations.to_numpy().tolist() == [["CXR2", "Opacity", "lung", "left", "base", "mild"]]
    steps = {row["step"]: (row["kept"], row["dropped"]) for row in found.funnel}
    assert steps["study is in the set, of locations in locations"] == (1, 1)
    assert steps["report is indexed by people (MeSH)"] == (3, 1)
    assert changes(found) == []
    path = found.folder / "locations.parquet"
    locations.assign(side="right").to_parquet(path, index=False)
    with pytest.raises(UserError, match=r"locations\.parquet: was changed"):
        check_sample(PreparedSet.open(found.folder))


def test_the_split_of_every_report_is_stored_and_parts_join_to_the_same(found, tree, tmp_path):
    split = read_split(found.folder / "split.csv")
    assert set(split.studies) == {"CXR1", "CXR2", "CXR3", "CXR4"}
    assert found.meta["split"] == {"name": "openi-report-80-10-10-v1", "sha256": split.sha256}
    parts = [tmp_path / "1", tmp_path / "2"]
    reading = Reading(split_file=found.folder / "split.csv")  # can be given back
    for number, part in enumerate(parts, start=1):
        how = {"reading": reading, "workers": 1}
        prepare_part(tree, part, PrepareSettings(size=16), f"{number}/2", **how)
    merged = merge(parts, tmp_path / "merged")
    assert merged.content_hash == found.content_hash
    for name in ("locations.parquet", "split.csv", "studies.parquet"):
        assert (merged.folder / name).read_bytes() == (found.folder / name).read_bytes()

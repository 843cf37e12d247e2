"""What names a measured cell stays as it was, so that no cell is measured twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from medclip_debias.config import json_hash
from studies.phantom_study import PhantomStudy, measurement_key
from studies.study import STUDIES, find_study

# Number of cells; hash of their keys, of what they share, and of what studies share as measured.
# Those of the studies on the phantom: version 2, since the shuffled control has the method's dose,
# the running mean is relative, and the AUC of each class is stored; quick since their phantom is
# drawn at 64 to 72 px. All others are as recorded at commit 565835b, when the studies were a part
# of the package.
KEYS = {
    ("error-bound", "full"): (12, "7556db218a06f411", "e8e67f77c7df82f4", ""),
    ("error-bound", "quick"): (1, "38733877d3485328", "1d8fc6ceb1f94c63", ""),
    ("estimator", "full"): (24, "a2b08874edfdf113", "8053f8a86d02ebd6", "c40663d70aa25e53"),
    ("estimator", "quick"): (12, "9be851fa13335013", "545c7ba97c783773", "2a5573c0af37bae8"),
    ("eta-tradeoff", "full"): (80, "52b342f174328c64", "65fc6a7e74ef1a9a", "4a3f767f333174b5"),
    ("eta-tradeoff", "quick"): (18, "031a80a3ae6aaaad", "882cc13a42e1a9da", "e583f40706c12d81"),
    ("false-negatives", "full"): (70, "921f2d4696b5916b", "cb02c17a2f27b760", "343c97c8e58cef08"),
    ("false-negatives", "quick"): (14, "109afb2fbc2660ae", "72a74bffeb8f5a12", "6492b36299a6b21d"),
    ("fine-grained", "full"): (30, "b63541570c00e349", "bce08beebdbcaa82", ""),
    ("fine-grained", "quick"): (30, "dd85a98708255250", "bce08beebdbcaa82", ""),
    ("fine-grained-phantom", "full"): (
        40,
        "d27c616c8efaf306",
        "cb691eb46d650c08",
        "dc6c1b928371f80e",
    ),
    ("fine-grained-phantom", "quick"): (
        8,
        "5f972b2fb22a03ff",
        "e59cc64d85b724e7",
        "05a8766132d04032",
    ),
    ("glofnd", "full"): (190, "7ba3612ea39e2808", "f3a256c877ac4c2a", ""),
    ("glofnd", "quick"): (22, "bc71303d6cd5c780", "c890653b95fe8b63", ""),
    ("long-tail", "full"): (240, "5e64a755ad3401f4", "0d958f4c30fc5ba1", ""),
    ("long-tail", "quick"): (16, "d3b1039e61141a2a", "3c032a44a2ff1bb8", ""),
    ("long-tail-phantom", "full"): (60, "8c823e1c164d6283", "cc5417eccd96049b", ""),
    ("long-tail-phantom", "quick"): (16, "feaa6d4c05caceca", "b067e11ee4b198b8", ""),
    ("mmcl-robustness", "full"): (170, "4092264755a2024f", "6fa4b0768f5c51b0", ""),
    ("mmcl-robustness", "quick"): (46, "940d8dbfdffc0e04", "150bb0724ea3152e", ""),
    ("noise", "full"): (90, "c8e1c8efd73a521e", "05b406fbfde8fb9f", "05b72148b5a76168"),
    ("noise", "quick"): (24, "de4e909f33446c7a", "73a18397ebf840d5", "7e9cc4a4191ff0e0"),
    ("spurious-marker", "full"): (72, "9ea5214970083a46", "959dd531dfb0376a", "d09e7e05012bf138"),
    ("spurious-marker", "quick"): (12, "c90addf745ed6f1a", "858d33339722b9fc", "55a49905bafd92dc"),
    ("table1", "full"): (54, "7194cb5e24835d39", "e3e2f677e7e65bee", "67870e43c9f06312"),
    ("table1", "quick"): (6, "793015dfc4c82633", "05a42a83c5eefe04", "3f906b278cc12176"),
    ("training-length", "full"): (90, "e59e68c170ad3082", "37d12c1550779b07", "40542a2458657816"),
    ("training-length", "quick"): (24, "722d8a213e6a2cb5", "1464e28fe1f166bd", "c52515c8bb9aef07"),
    ("x-clr", "full"): (55, "3fd0963e9f51b982", "01486cd3e994e50b", "96475f594d516b54"),
    ("x-clr", "quick"): (8, "2716b342b3150a73", "e59cc64d85b724e7", "386ede53a95109bc"),
}
TRAINED = {"data", "train", "loss", "aggregator", "seed"}


@pytest.mark.parametrize(("name", "which"), sorted(KEYS))
def test_cells_keep_their_keys(name, which):
    kind = find_study(name)
    study = kind(kind.quick() if which == "quick" else kind.settings_class(), Path("inputs"))
    cells = study.cells()
    shared = [study.shared(cell) for cell in cells]
    folders = [study.shared_path(one).name if one is not None else None for one in shared]
    trained = [cell for cell in cells if set(cell) >= TRAINED]
    measured = ""
    if isinstance(study, PhantomStudy) and trained:
        measured = json_hash([measurement_key(cell) for cell in trained])
    found = (len(cells), json_hash([study.key(cell) for cell in cells]), json_hash(folders))
    assert (*found, measured) == KEYS[name, which]


def test_every_study_has_its_keys_recorded():
    assert {name for name, _ in KEYS} == set(STUDIES.all())

"""What names a measured cell stays as it was, so that no cell is measured twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from medclip_debias.config import json_hash
from studies.phantom_study import PhantomStudy, measurement_key
from studies.study import STUDIES, find_study

# Number of cells; hash of their keys, of what they share, and of what studies share as measured.
# Recorded at commit 565835b, when the studies were a part of the package.
KEYS = {
    ("error-bound", "full"): (12, "7556db218a06f411", "e8e67f77c7df82f4", ""),
    ("error-bound", "quick"): (1, "38733877d3485328", "1d8fc6ceb1f94c63", ""),
    ("estimator", "full"): (24, "1dbe8f17ac53aefa", "8053f8a86d02ebd6", "a57665176c81ce31"),
    ("estimator", "quick"): (12, "4f6fa1eb9fcf275c", "d24a85e530502b3f", "09a4b79da4e4eb48"),
    ("eta-tradeoff", "full"): (80, "ef7b67e1b020eabc", "65fc6a7e74ef1a9a", "002907527a1d6a36"),
    ("eta-tradeoff", "quick"): (18, "3ce6e620768f9735", "ab85f65e3267f2a7", "2558a5109056ba50"),
    ("false-negatives", "full"): (70, "2316e22a4aa19345", "cb02c17a2f27b760", "81cc6e04a80fc9b2"),
    ("false-negatives", "quick"): (14, "7c8cad275496e454", "5aa7183d2d7a544b", "8a77cc3707fbc1b1"),
    ("fine-grained", "full"): (30, "b63541570c00e349", "bce08beebdbcaa82", ""),
    ("fine-grained", "quick"): (30, "dd85a98708255250", "bce08beebdbcaa82", ""),
    ("fine-grained-phantom", "full"): (
        40,
        "fb77fd9c68852f41",
        "cb691eb46d650c08",
        "5ce5a494a4f29b24",
    ),
    ("fine-grained-phantom", "quick"): (
        8,
        "9704dc7fb3a28626",
        "09111883005dcf7d",
        "9e8f0012c158af38",
    ),
    ("glofnd", "full"): (190, "7ba3612ea39e2808", "f3a256c877ac4c2a", ""),
    ("glofnd", "quick"): (22, "bc71303d6cd5c780", "c890653b95fe8b63", ""),
    ("long-tail", "full"): (240, "5e64a755ad3401f4", "0d958f4c30fc5ba1", ""),
    ("long-tail", "quick"): (16, "d3b1039e61141a2a", "3c032a44a2ff1bb8", ""),
    ("long-tail-phantom", "full"): (60, "8c823e1c164d6283", "cc5417eccd96049b", ""),
    ("long-tail-phantom", "quick"): (16, "feaa6d4c05caceca", "b067e11ee4b198b8", ""),
    ("mmcl-robustness", "full"): (170, "4092264755a2024f", "6fa4b0768f5c51b0", ""),
    ("mmcl-robustness", "quick"): (46, "940d8dbfdffc0e04", "150bb0724ea3152e", ""),
    ("noise", "full"): (90, "7aeba4d9df23521e", "05b406fbfde8fb9f", "85f2a6a674078035"),
    ("noise", "quick"): (24, "ece8fbe3cd1baa75", "4b6ce8150e83cfea", "ac18b759cc0f847b"),
    ("spurious-marker", "full"): (72, "9ea5214970083a46", "959dd531dfb0376a", "fe796017a73de99f"),
    ("spurious-marker", "quick"): (12, "8d61947623dc0e00", "8fcd456a40511e7d", "259e38fffa899ce8"),
    ("table1", "full"): (54, "49b792a00a46bdb9", "e3e2f677e7e65bee", "ec689e102e6e4f80"),
    ("table1", "quick"): (6, "d725aceec13eec3c", "70b43966bfa41c54", "3854f6d6732fde26"),
    ("training-length", "full"): (90, "375c8716a92ff70b", "37d12c1550779b07", "ecbdd0d4f1080874"),
    ("training-length", "quick"): (24, "ebfea32780f7f7f4", "14b8818237850d36", "f2d5616c0a981c5d"),
    ("x-clr", "full"): (55, "268924828fe58f05", "01486cd3e994e50b", "023217b024b8d2f1"),
    ("x-clr", "quick"): (8, "8811b5241f8aef33", "09111883005dcf7d", "1a02e04c1b3c3380"),
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

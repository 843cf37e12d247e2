"""An archive's own labels as columns, and the CheXpert columns that some of them amount to.

A CheXpert column is 1 where one of its group is reported. A group holds a label only where the
archive's own tree of terms has it below the finding; where CheXpert's finding is wider than any
label of the archive (Lung Opacity in PadChest), there is no such column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from medclip_debias.data.labels import Labels, label_name

NO_FINDING = "No Finding"

PADCHEST: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "Atelectasis": frozenset(
            (
                *("atelectasis", "total atelectasis", "lobar atelectasis", "round atelectasis"),
                *("segmental atelectasis", "laminar atelectasis", "atelectasis basal"),
            )
        ),
        "Cardiomegaly": frozenset(("cardiomegaly",)),
        "Consolidation": frozenset(("consolidation",)),
        "Edema": frozenset(("pulmonary edema",)),
        "Enlarged Cardiomediastinum": frozenset(
            ("mediastinal enlargement", "superior mediastinal enlargement")
        ),
        "Fracture": frozenset(
            (
                *("fracture", "rib fracture", "callus rib fracture", "clavicle fracture"),
                *("humeral fracture", "vertebral fracture"),
            )
        ),
        "Lung Lesion": frozenset(
            ("nodule", "multiple nodules", "pulmonary mass", "lung metastasis")
        ),
        NO_FINDING: frozenset(("normal",)),
        "Pleural Effusion": frozenset(
            (
                *("pleural effusion", "loculated pleural effusion", "loculated fissural effusion"),
                *("hydropneumothorax", "empyema", "hemothorax"),
            )
        ),
        "Pleural Other": frozenset(
            (
                *("pleural thickening", "apical pleural thickening", "pleural plaques"),
                *("calcified pleural thickening", "calcified pleural plaques", "pleural mass"),
            )
        ),
        "Pneumonia": frozenset(("pneumonia", "atypical pneumonia")),
        "Pneumothorax": frozenset(("pneumothorax", "hydropneumothorax")),
        "Support Devices": frozenset(
            (
                *("nsg tube", "endotracheal tube", "tracheostomy tube", "chest drain tube"),
                *("gastrostomy tube", "catheter", "central venous catheter"),
                "central venous catheter via subclavian vein",
                "central venous catheter via jugular vein",
                "central venous catheter via umbilical vein",
                *("reservoir central venous catheter", "electrical device", "pacemaker", "dai"),
                *("dual chamber device", "single chamber device", "artificial heart valve"),
                *("artificial mitral heart valve", "artificial aortic heart valve"),
            )
        ),
    }
)
"""CheXpert columns of PadChest and PadChest-GR, after the tree of terms of PadChest's paper."""

PADCHEST_SILENT = frozenset(("unchanged", "exclude", "suboptimal study"))
"""Labels of PadChest that do not say what is there: alone they leave every other one open."""

VINDR: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "Atelectasis": frozenset(("Atelectasis",)),
        "Cardiomegaly": frozenset(("Cardiomegaly",)),
        "Consolidation": frozenset(("Consolidation",)),
        "Edema": frozenset(("Edema",)),
        "Fracture": frozenset(("Clavicle fracture", "Rib fracture")),
        "Lung Lesion": frozenset(("Nodule/Mass", "Lung tumor")),
        "Lung Opacity": frozenset(("Lung Opacity",)),
        NO_FINDING: frozenset(("No finding",)),
        "Pleural Effusion": frozenset(("Pleural effusion",)),
        "Pleural Other": frozenset(("Pleural thickening",)),
        "Pneumonia": frozenset(("Pneumonia",)),
        "Pneumothorax": frozenset(("Pneumothorax",)),
    }
)
"""CheXpert columns of VinDr-CXR."""


class LabelColumns:
    """The label columns of an archive: CheXpert's by their groups, then its own.

    A label that CheXpert has under the same name makes no column of its own.

    Args:
        names: every label of the archive, spelt as in ``groups``.
        groups: labels of the archive by the CheXpert column that each of them means.
        silent: labels that say nothing of the others.
    """

    def __init__(
        self,
        names: Iterable[str],
        groups: Mapping[str, frozenset[str]],
        silent: Collection[str] = (),
    ) -> None:
        self.own = sorted(name for name in set(names) if label_name(name) is None)
        self.groups = groups
        self.silent = frozenset(silent)

    def says_what_is_there(self, found: Collection[str]) -> bool:
        """Tell whether a study's labels allow to call the others absent."""
        return bool(set(found) - self.silent)

    def values(self, found: Collection[str]) -> Labels:
        """Return 1 for what was found, 0 for the rest, ``None`` where nothing says it is absent.

        Args:
            found: labels of a study; none for a study without labels.
        """
        absent = 0.0 if self.says_what_is_there(found) else None
        given = set(found)
        labels: Labels = {
            name: 1.0 if members & given else absent for name, members in self.groups.items()
        }
        return labels | {name: 1.0 if name in given else absent for name in self.own}

"""The phantom in the layouts of archives that the benchmark's cards are of.

`write_archive` writes the studies of `medclip_debias.phantom` as an archive would hold them; the
same settings give the same patients, images and reports in every layout.
"""

from __future__ import annotations

import os
from pathlib import Path

from medclip_debias.files import atomic_folder
from phantom_layouts.archives.boxed import ChestXDet, ChestXray14, Rsna, Siim
from phantom_layouts.archives.chexpert import CheXlocalize, CheXpert, CheXpertPlus
from phantom_layouts.archives.mimic_cxr import MimicCxr, MsCxrT
from phantom_layouts.archives.padchest import PadChest, PadChestGrounded
from phantom_layouts.archives.vindr_cxr import VindrCxr
from phantom_layouts.layout import ArchiveSettings, Layout

__all__ = ["LAYOUTS", "ArchiveSettings", "Layout", "write_archive"]

LAYOUTS: dict[str, type[Layout]] = {
    layout.kind: layout
    for layout in (
        *(ChestXDet, ChestXray14, CheXlocalize, CheXpert, PadChestGrounded, MimicCxr, MsCxrT),
        *(PadChest, CheXpertPlus, Rsna, Siim, VindrCxr),
    )
}
"""Every layout by its kind."""


def write_archive(
    out: Path, settings: ArchiveSettings, workers: int | None = None
) -> dict[str, int]:
    """Write a phantom in the layout that ``settings`` name; return the counts.

    The number of ``workers`` changes nothing but the time.
    """
    layout = LAYOUTS[settings.layout](settings)
    with atomic_folder(Path(out)) as unfinished:
        return layout.generate(unfinished, workers or os.cpu_count() or 1)

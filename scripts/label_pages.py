"""Pages of the site on label columns: the label maps that come along, and Open-i's own table."""

from __future__ import annotations

from medclip_debias.data.label_maps import load_label_map, packaged_maps
from medclip_debias.data.mesh import openi_mapping

_PAGE = """# Label maps that come along

Written from `medclip_debias/data/label_maps/`. How they are
used, and how to write one: [evaluation.md](evaluation.md#another-archive).

Columns are those of the archive. Sets that `prepare` made of it keep them, or spell them as
CheXpert does; both are found (capitals and underscores do not matter). `any of A, B` is present
where one of them is, uncertain where one of them is uncertain and none present, blank where one is
blank and none of that, and else absent. `blank: C` leaves the class open where C is present and the
class is not.

A class of CheXpert's that an archive labels itself is taken as the archive has it, as `prepare`
fills its columns, so that figures compare with published ones. Open-i's own headings leave open
what [Open-i's table](openi.md) leaves open. What a map leaves out cannot be judged on the archive,
and `results.json` says so with the reason given here.
"""


def label_maps() -> str:
    """Every map that comes along, as a table."""
    parts = [_PAGE]
    for name in packaged_maps():
        found = load_label_map(name)
        parts.append(
            f"\n## {name}\n{found.about}\n\n| class | columns | why |\n| --- | --- | --- |\n"
        )
        parts += [f"| {key} | {rule} | {rule.why} |\n" for key, rule in found.classes.items()]
        if found.left_out:
            parts.append("\n| left out | why |\n| --- | --- |\n")
            parts += [f"| {', '.join(names)} | {why} |\n" for why, names in found.left_out.items()]
        others = "; ".join(f"{name}: {', '.join(known)}" for name, known in found.spellings.items())
        if others:
            parts.append(f"\nOther names of columns: {others}.\n")
        if found.rare:
            names = "any of them" if found.rare == "all" else ", ".join(found.rare)
            parts.append(f"\nColumns that may be missing: {names}.\n")
    return "".join(parts)


def openi_labels() -> str:
    """The mapping of Open-i's index to label columns."""
    mapping = openi_mapping()
    lines = ["| column | of | 1 (present) | blank | why |", "| --- | --- | --- | --- | --- |"]
    for of, columns in (("CheXpert", mapping.chexpert), ("Open-i", mapping.openi)):
        for name, column in columns.items():
            present, blank = (
                "; ".join(f"`{p}`" for p in part) for part in (column.present, column.blank)
            )
            lines.append(f"| {name} | {of} | {present} | {blank} | {column.why} |")
    for of, left_out in (
        ("CheXpert", mapping.chexpert_left_out),
        ("Open-i", mapping.openi_left_out),
    ):
        lines += [f"| no column: {name} | {of} | | | {why} |" for name, why in left_out.items()]
    return "# Open-i's label columns\n\n" + "\n".join(lines) + "\n\n"

"""Pages of the site on label columns: the label maps that come along, and Open-i's own table."""

from __future__ import annotations

from medclip_debias.data.label_maps import load_label_map, packaged_maps
from medclip_debias.data.mesh import openi_mapping

_PAGE = """# Packaged label maps

What the label columns of an archive mean for the classes of a prompt set, and why; generated from
`medclip_debias/data/label_maps/`. How to use and write one:
[evaluation](evaluation.md#another-archive).

Columns are those of the archive, in its own spelling or CheXpert's (capitals and underscores do not
matter). `any of A, B` is present where one of them is, else uncertain where one of them is, else
blank where one of them is, else absent. `blank: C` makes the class blank where C is present and the
class is not.

A CheXpert class that an archive labels itself is used as the archive has it, so that figures
compare with published ones. Open-i's own headings are blank where [Open-i's table](openi.md#labels)
is. Classes that are left out cannot be judged on the archive; `results.json` has the reason given
here.
"""


def label_maps() -> str:
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

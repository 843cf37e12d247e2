"""The page of the task cards: every packaged card, as a table and in a few lines each."""

from __future__ import annotations

from collections.abc import Iterable

from medclip_debias.bench.card import Card, packaged_cards
from medclip_debias.markdown import markdown_table

KINDS = {
    "zero_shot": "Zero-shot classification",
    "grounding": "Grounding",
    "segmentation": "Segmentation",
    "retrieval": "Retrieval",
    "negation": "Negation",
    "time": "Time",
}

_HEAD = """# Task cards

A card says which images of which archive are judged, with which prompts, published protocol and
metrics; the first metric ranks. Two versions of a card are two tasks, whose figures are never
mixed. This page is generated from `medclip_debias/bench/cards/`, one YAML file a card.

- **Images.** The number in the official list, where it is published. Lists are read from your own
  copy and never stored here; a list with another number of images or another hash is of another
  release and cannot be used. Hashes are blank until somebody who has the archive adds them.
- **Published figures** were not reproduced here. Each has its source and how it differs.
- **Lists by a rule** (5x200, MS-CXR's single boxes) are made from your copy by `python
  scripts/cards.py`.
- Cards of `phantom/` run on generated radiographs, so everybody can run them; other cards never
  run on a phantom.

## Writing one

A YAML file in that folder is a card; `tests/bench/test_cards.py` checks it, and runs it where the
phantom can take the archive's form.

```yaml
name: myarchive/zero-shot         # what it is of, and the task
version: 1                        # raise it whenever a figure could change
kind: zero_shot                   # or grounding, segmentation, retrieval, negation, time
title: My archive's test images, two findings
about: Labels of two radiologists.
data:
  archive: manifest               # as prepare --kind takes it
  folders: [myarchive]            # names that its folder may have below the data's root
  obtain: my archive (its address)
  prepare: {without_sentence: keep}
  list: {split: all, file: test.csv, column: image, images: 500}
prompts: chexpert
classes: [Edema, Pneumothorax]
preset: radzero                   # published protocol beside ours
metrics: [zero_shot.mean_auc_positive, zero_shot.mean_auc]
published:
  - {model: Theirs, metric: zero_shot.mean_auc_positive, value: 0.8, source: "their paper, Table 1"}
differs: [Laterals are left aside.]
```
"""


def page(cards: Iterable[Card] | None = None) -> str:
    """The page of the given cards, by default the packaged ones."""
    found = list(packaged_cards().values() if cards is None else cards)
    lines = [_HEAD.rstrip()]
    for kind, title in KINDS.items():
        own = [card for card in found if card.kind == kind]
        if not own:
            continue
        head = ("card", "archive", "images", "prompts", "preset", "metrics")
        lines += ["", f"## {title}", "", *markdown_table(head, [_row(card) for card in own])]
        for card in own:
            lines += _notes(card)
    return "\n".join(lines) + "\n"


def _row(card: Card) -> list[str]:
    classes = "" if card.classes is None else f", {len(card.classes)} classes"
    images = card.data.list.images
    return [
        f"`{card.full_name}`",
        f"`{card.data.archive}`" + (", generated" if card.data.synthetic else ""),
        "" if images is None else f"{images:,}",
        "" if card.prompts is None else f"`{card.prompts}`{classes}",
        f"`{card.preset}`",
        ", ".join(f"`{metric}`" for metric in card.metrics),
    ]


def _notes(card: Card) -> list[str]:
    lines = ["", f"**`{card.full_name}`** {card.title}. {card.about}", ""]
    lines.append(f"- To get: {card.data.obtain}.")
    if card.data.list.file is not None:
        wanted = card.data.list
        cells = ", ".join(f"{key} = {value}" for key, value in wanted.where.items())
        lines.append(f"- List: `{wanted.file}`" + (f", where {cells}" if cells else "") + ".")
    files = {keyword: name for keyword, name in card.data.files if name is not None}
    lines += [f"- File for `{keyword}`: `{name}`." for keyword, name in files.items()]
    for metric in dict.fromkeys(figure.metric for figure in card.published):
        figures = [figure for figure in card.published if figure.metric == metric]
        shown = ", ".join(f"{figure.model} {figure.value:g}" for figure in figures)
        sources = "; ".join(dict.fromkeys(figure.source for figure in figures))
        lines.append(f"- Published, `{metric}`: {shown} ({sources}).")
        for protocol in dict.fromkeys(f.protocol for f in figures if f.protocol):
            whose = ", ".join(f.model for f in figures if f.protocol == protocol)
            lines.append(f"  - {whose}: {protocol}.")
    lines += [f"- Differs: {sentence}" for sentence in card.differs]
    return lines

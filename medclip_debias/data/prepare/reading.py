"""How a source is read: what a user says besides its path and the settings of rows and studies."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from medclip_debias.data.named_split import (
    HasNamedSplit,
    NamedSplit,
    file_sha256,
    is_plain,
    plain_split,
    read_split,
)
from medclip_debias.data.records import Source
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.sources.registry import Given
from medclip_debias.data.templates import wordings_hash
from medclip_debias.data.text.reports import ReportSettings
from medclip_debias.errors import UserError


@dataclass(frozen=True)
class Reading(Given):
    """How a source is read: what is given besides its path, and what is taken of what it holds.

    Attributes:
        kind: kind of source, or ``auto``.
        text: sections and sentences that are used; its language is the ``language`` that is given.
        split_file: a named split that takes the place of the source's own.
        all_test: every image is test, whatever the source's split: the set is for evaluation.
        label_sentences: the labels of studies without a report say their sentences.
    """

    kind: str = "auto"
    text: ReportSettings = field(default_factory=ReportSettings)
    split_file: Path | None = None
    all_test: bool = False
    label_sentences: bool = False

    def __post_init__(self) -> None:
        for option, value in (("file", self.split_file), ("seed", self.split_seed)):
            if self.all_test and value is not None:
                raise UserError(
                    f"--all-test and --split-{option} do not go together: with --all-test there"
                    " is one split; leave one out."
                )

    def source(self, path: Path) -> Source:
        """Open the source at ``path``."""
        given = {option.name: getattr(self, option.name) for option in fields(Given)}
        given["language"] = None if self.text.language == "auto" else self.text.language
        return detect(path, self.kind, **given)

    def split(self, source: Source) -> NamedSplit | None:
        """Return the named split of a source: that of the file, or its own if it has one.

        None where every image is test.
        """
        if self.all_test:
            return None
        own = source.named_split() if isinstance(source, HasNamedSplit) else None
        if self.split_file is None:
            return own
        if self.split_seed is not None:
            raise UserError("--split-file and --split-seed do not go together; leave one out.")
        split = None if is_plain(self.split_file) else read_split(self.split_file)
        images = source.images()
        ids = {image.study_id for image in images} or {s.study_id for s in source.studies()}
        if split is None:
            return plain_split(self.split_file, images, ids)
        split.check_covers(self.split_file, ids if own is None else own.studies.keys())
        return split

    def options(self) -> dict[str, Any]:
        """Return what changes the content of the set, as JSON values."""
        text = self.text.model_dump(mode="json")
        # Left out where they change nothing, so that older sets are found to be the same.
        for name, default in (("language", "auto"), ("max_deidentified", 1.0)):
            if text[name] == default:
                del text[name]
        options: dict[str, Any] = {
            "labeller": self.labeller,
            "split_seed": self.split_seed,
            "text_only": self.text_only,
            "reports": text,
        }
        if self.split_file is not None:
            options["split"] = file_sha256(self.split_file)
        if self.all_test:
            options["all_test"] = True
        if self.label_sentences:
            options["label_sentences"] = wordings_hash()
        return options

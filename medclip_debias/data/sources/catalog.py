"""Archives of labels, boxes and masks without reports: entries of ``catalog.yaml``, and its reader.

An entry says where an archive's tables, lists, boxes and masks are and what their columns hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from medclip_debias.data.images.headers import identity
from medclip_debias.data.labels import Labels, label_columns
from medclip_debias.data.records import Annotations, ImageRecord, file_stem
from medclip_debias.data.sources.archive import (
    ArchiveSource,
    LabelCells,
    merged_labels,
    without_repeats,
)
from medclip_debias.data.sources.entries import ArchiveFiles, entries
from medclip_debias.data.sources.findings import Marks, box_of, class_labels, finding_name
from medclip_debias.data.sources.ids import is_blank, plain_id, read_ids
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.stanford import named_rows, study_of, view_of
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.sources.tree import is_file
from medclip_debias.data.sources.votes import Votes
from medclip_debias.data.splits import SPLIT_SEED, seeded_split, split_name
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_value

if TYPE_CHECKING:
    import pandas as pd

_NO_PATIENTS = "No patient ids: every image counts as its own patient."


class _Row(NamedTuple):
    """An image as a table has it: its file in each column that names one, and whose it is."""

    files: tuple[str, ...]
    name: str
    image: str
    study: str
    patient: str
    view: str
    split: str
    origin: str


class CatalogSource(ArchiveSource):
    """An archive of the catalog."""

    kind: ClassVar[str]

    def __init__(self, root: Path, given: Given) -> None:
        super().__init__(root, given)
        self.entry = entries()[self.kind]
        self.files = ArchiveFiles(root, self.entry)
        self._marks = Marks(self.count)
        self._labels: dict[str, Labels] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._cells: dict[str, list[str]] = {}
        self._votes = Votes(self.entry["labels"], self.count)
        self._lists = self.files.split_lists() if self.seed is None else None
        tables = self.files.tables()
        if not tables:
            listed = ", ".join(names[0] for names in self.files.names().values())
            raise UserError(
                f"{root}: has no table of {self.entry['title']} ({listed}); check the path."
            )
        rows: dict[str, _Row] = {}
        for split, path in tables.items():
            for row in self._rows(split, path):
                other = rows.setdefault(row.image, row)
                if other.split != row.split:
                    raise UserError(
                        f"{row.origin}: its image is in both parts, {other.split} and {row.split};"
                        " download the tables again."
                    )
        if not rows:
            listed = ", ".join(path.name for path in tables.values())
            raise UserError(f"{root}: no row of {listed} names an image; download it again.")
        self._add_images(list(rows.values()))
        self._labels |= self._votes.labels()
        self._read_boxes(tables, rows.values())
        first = next(iter(tables.values()))
        self._read_masks(first)
        names = [finding_name(name) for name in self.files.shown(first)]
        for image in self.image_records if names else ():
            present = self._marks.present.get(image.image_id, ())
            self._labels[image.image_id] = class_labels(present, names)
        self._add_classes()
        voted = self.image_records if "votes" in self.entry["labels"] else ()
        splits = {image.image_id: image.split for image in voted}
        sizes = self.files.annotated_sizes(image.image_id for image in self.image_records)
        self.phrase_records = self._marks.phrases(sizes, splits)
        self.add_studies(self._labels)
        self._describe(tables, rows.values())

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take a folder with the archive's tables; with its masks where it extends another one."""
        entry = entries()[cls.kind]
        there = ArchiveFiles(path, entry)
        if not path.is_dir():
            return Sure.NO
        if "files" in entry.get("masks", {}):
            return Sure.EXTENSION if there.masks() else Sure.NO
        try:
            tables = there.tables()
        except UserError:  # two releases: whoever opens them says so
            return Sure.RELEASE
        if not tables:
            return Sure.NO
        doubtful = entry.get("recognised", {}).get("of", ())
        return Sure.LAYOUT if {p.name for p in tables.values()} & {*doubtful} else Sure.RELEASE

    def annotations(self) -> list[Annotations]:
        """Return what each of several readers said."""
        return self._votes.annotations() if "votes" in self.entry["labels"] else []

    # --------------------------------------------------------------------------- tables

    def _rows(self, split: str, path: Path) -> Iterator[_Row]:
        if path.suffix != ".json":
            return self._of_table(split, path)
        return self._of_coco(split, path) if "coco" in self.entry else self._of_list(split, path)

    def _of_table(self, split: str, path: Path) -> Iterator[_Row]:
        how = self.entry["columns"]
        boxes = self.entry.get("boxes", {})
        needed = [how[name] for name in ("patient", "study", "filled") if name in how]
        beside = [boxes["when"], *boxes["sides"]] if "when" in boxes else []
        single = how["image"] if len(how["image"]) == 1 else []
        table = read_table(path, required=[*single, *needed, *beside])
        columns = [name for name in how["image"] if name in table.columns]
        if not columns:
            raise UserError(
                f"{path}: has neither column {' nor '.join(how['image'])}; download it again."
            )
        table = self._clean(path, table, columns[0], needed)
        names = table[columns[0]]
        paths = [study_of(name) for name in names] if "path" in how else [("", "")] * len(table)
        images = [
            "/".join(filter(None, (*p, file_stem(n)))) for p, n in zip(paths, names, strict=True)
        ]
        self._read_labels(split, path, table, images)
        if "when" in boxes:
            for image, finding, _, box in self._marks.read_boxes(path, table, boxes, {*images}):
                self._marks.add(image, finding, [box])
        if "filled" in how:
            for image, cell in zip(images, table[how["filled"]], strict=True):
                self._cells.setdefault(image, []).append(cell)
        patients = self._patients(path, table, images)
        words = _column(table, self.entry.get("split", {}).get("column"), split)
        studies, views = _column(table, how.get("study")), _column(table, how.get("view"))
        if "sides" in self.entry:
            sides, ways = (_column(table, name) for name in self.entry["sides"])
            views = [view_of(s, w, n) for s, w, n in zip(sides, ways, names, strict=True)]
            unstated = views.count("FRONTAL")
            if unstated:
                self.said.append(f"{path}: {unstated} frontal images are neither AP nor PA.")
        seen: set[str] = set()
        for row, image, (owner, part), patient, study, view, word, *cells in zip(
            *(table.index.tolist(), images, paths, patients, studies, views, words),
            *(table[name] for name in columns),
            strict=True,
        ):
            if image in seen:
                continue
            seen.add(image)
            where = f"{path}, row {row}"
            patient, study = owner or patient or image, part or study
            yield _Row(
                files=tuple(self.entry.get("file", "{0}").format(cell, split) for cell in cells),
                name=cells[0],
                image=image,
                # Numbers of studies are not unique over patients.
                study=f"{patient}/{study}" if study else image,
                patient=patient,
                view=view,
                split=split_name(word, where) if word else "",
                origin=where,
            )
        if "key" not in self.entry:  # elsewhere an image has several rows
            step = f"image of {path.name} has a stem of its own"
            self.count(step, "rows", len(seen), len(table))

    def _clean(
        self, path: Path, table: pd.DataFrame, image: str, needed: list[str]
    ) -> pd.DataFrame:
        """Return the rows that repeat none and have what they must."""
        key = self.entry.get("key", image)
        key = list(table.columns) if key == "all" else key
        if isinstance(key, list):
            key = [name for name in key if name in table.columns]
        table = without_repeats(path, table, key, self.counted, self.said)
        if table.empty:
            raise UserError(f"{path}: has no rows; download it again.")
        if "path" in self.entry["columns"]:
            return named_rows(path, table, image, self.counted)
        needed = [image, *needed]
        blank = table[needed].map(is_blank)
        good = ~blank.any(axis=1)
        if not good.all() and self.entry["rows"] == "refused":
            row = table.index[~good][0]
            column = next(name for name in needed if blank.loc[row, name])
            raise UserError(f"{path}, row {row}: column '{column}' is blank; fill it in.")
        step = f"row of {path.name} is filled in ({', '.join(needed)})"
        self.count(step, "rows", int(good.sum()), len(table))
        return table[good]

    def _patients(self, path: Path, table: pd.DataFrame, images: list[str]) -> list[str]:
        if "path" in self.entry["columns"] or self.entry.get("header") == "now":
            return [""] * len(table)
        if "people" in self.entry:
            people = self._people(set(images))
            return [people.get(image, "") for image in images]
        column = self.entry["columns"].get("patient")
        if column is None:
            self._tell_no_patients()
            return [""] * len(table)
        if self.entry["rows"] == "counted":
            return list(table[column])
        patients = read_ids(path, table, column)
        self.said += patients.said(path, column)
        return patients.ids

    def _people(self, images: set[str]) -> dict[str, str]:
        """Return the person of each image that is one of another archive's."""
        how = self.entry["people"]
        path = self.root / how["file"]
        if not is_file(path):
            self.said.append(
                f"No {path.name}: every image counts as another patient, though some are one"
                " person's."
            )
            return {}
        content = read_json_value(path, "download it again, or remove it")
        people = {}
        for one in content if isinstance(content, list) else []:
            image, name = (
                (one.get(how[k]) for k in ("image", "is")) if isinstance(one, dict) else (0, 0)
            )
            if isinstance(image, str) and isinstance(name, str) and image in images:
                people[image] = plain_id(name.partition("_")[0])
        self.count(f"image is in {path.name}", "rows", len(people), len(images))
        return people

    def _of_coco(self, split: str, path: Path) -> Iterator[_Row]:
        """Read a list in COCO's form: its images, and their boxes."""
        content = read_json_value(path, "download it again")
        try:
            names = {image["id"]: str(image["file_name"]) for image in content["images"]}
            classes = {one["id"]: finding_name(one["name"]) for one in content["categories"]}
            boxes = content["annotations"]
            listed = [(a["image_id"], a["category_id"], a["bbox"]) for a in boxes]
            known = [(names[i], classes[c], s) for i, c, s in listed if i in names and c in classes]
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}: is no list of images, categories and annotations; download it again."
            ) from error
        good = 0
        for name, finding, sides in known:
            box = box_of(sides) if isinstance(sides, list) else None
            if box is not None:
                good += 1
                self._marks.add(file_stem(name), finding, [box])
        self.count(f"annotation of {path.name} has image and box", "boxes", good, len(boxes))
        self._tell_no_patients()
        stems = {file_stem(name) for name in names.values()}
        self.count(f"image of {path.name} has a stem of its own", "rows", len(stems), len(names))
        for number, name in enumerate(names.values(), start=1):
            ids = (file_stem(name),) * 3
            yield _Row((name,), name, *ids, "", split, f"{path}, image {number}")

    def _of_list(self, split: str, path: Path) -> Iterator[_Row]:
        """Read a list of one object an image: findings, their boxes and outlines."""
        how = self.entry["labels"]
        content = read_json_value(path, "download it again", encoding="utf-8-sig")
        if not isinstance(content, list) or not content:
            raise UserError(f"{path}: is not a list of images; download it again.")
        classes = {finding_name(name) for name in self.files.shown(path)}
        counts: Counter[str] = Counter()
        for number, entry in enumerate(content, start=1):
            name = entry.get(how["image"]) if isinstance(entry, dict) else None
            if not isinstance(name, str) or not name.strip():
                continue
            findings, corners = entry.get(how["findings"]), entry.get(how["corners"])
            if not isinstance(findings, list) or not isinstance(corners, list):
                continue
            counts["good"] += 1
            image = file_stem(name.strip())
            if image in self._marks.present:
                continue
            findings = [finding_name(str(finding)) for finding in findings]
            counts.update(once=1, named=len(findings), known=sum(f in classes for f in findings))
            side = self.entry["boxes"]["annotated"]
            counts += self._marks.add_entry(
                image, findings, corners, entry.get(how["outlines"]), side
            )
            ids = (image,) * 3
            yield _Row((name.strip(),), name.strip(), *ids, "", split, f"{path}, entry {number}")
        for step, unit, kept, of in (
            (f"entry of {path.name} has a name and its lists", "rows", "good", len(content)),
            (f"entry of {path.name} is no repeat", "rows", "once", counts["good"]),
            (
                f"finding of {path.name} is one of the archive's",
                "label cells",
                "known",
                counts["named"],
            ),
            (f"finding of {path.name} has a box of its own", "boxes", "paired", counts["listed"]),
            (f"box of {path.name} is four numbers", "boxes", "read", counts["paired"]),
            (
                f"outline of {path.name} has three points or more",
                "rows",
                "outlined",
                counts["outlines"],
            ),
        ):
            self.count(step, unit, counts[kept], of)
        self._tell_no_patients()

    def _tell_no_patients(self) -> None:
        if _NO_PATIENTS not in self.said:
            self.said.append(_NO_PATIENTS)

    # --------------------------------------------------------------------------- images

    def _add_images(self, rows: list[_Row]) -> None:
        entry = self.entry
        codes, header = entry.get("views", {}), entry.get("header")
        find = self._below() if entry["place"] == "below" else self._along_paths(rows)
        unknown = 0
        for row in rows:
            file, patient, view = find(row), row.patient, row.view
            if header == "now":
                about = identity(file)
                patient, view = about.patient or row.image, about.view
                unknown += not about.patient
                self._sizes[row.image] = about.size or (entry["masks"]["side"],) * 2
            view = entry.get("view", "") if is_blank(view) else view
            view = codes.get(view.upper(), view.upper() if codes else view)
            self.image_records.append(
                ImageRecord(
                    *(row.image, row.study, patient, file, view, self._split(row, patient)),
                    *(row.origin, header == "later"),
                )
            )
        if unknown:
            self.said.append(
                f"{self.root}: {unknown} images have no header that names a patient; each counts"
                " as another patient."
            )

    def _below(self) -> Callable[[_Row], Path]:
        """Return the search for images anywhere below a folder, by their names alone."""
        names = self.entry.get("tree", [])
        folder = next((f for name in names if (f := self.root / name).is_dir()), self.root)
        tree = self.tree(folder)
        if names:
            unlisted = sum(file_stem(name) not in self._cells for name in tree.by_name)
            step = f"file of {folder.name} has a row in the table"
            self.count(step, "rows", len(tree.by_name) - unlisted, len(tree.by_name))
        return lambda row: tree.path(Path(row.files[0]).name, self.entry["below"])

    def _along_paths(self, rows: list[_Row]) -> Callable[[_Row], Path]:
        """Return the search for images where the paths of the table lead."""
        folders = [
            "/".join(filter(None, (folder, inner)))
            for inner in ("", *self.entry.get("in", ()))
            for folder in self.files.folders
        ]
        columns = [[row.files[at] for row in rows] for at in range(len(rows[0].files))]
        places = [self.locate(names, list(filter(None, folders))) for names in columns]

        def find(row: _Row) -> Path:
            pairs = list(zip(places, row.files, strict=True))
            exact = (images.exact(name) for images, name in pairs)
            alike = (images.find(name) for images, name in pairs)
            return next(filter(None, (*exact, *alike)), None) or places[0].path(row.files[0])

        return find

    def _split(self, row: _Row, patient: str) -> str:
        seeded = seeded_split(patient, SPLIT_SEED if self.seed is None else self.seed)
        if self.seed is not None:
            return seeded
        split = row.split or seeded if self._lists is None else self._lists.get(row.name, "")
        validates = split == "train" and seeded == "validate" and not self.files.validates()
        return "validate" if validates else split

    # --------------------------------------------------------------------------- labels

    def _read_labels(self, split: str, path: Path, table: pd.DataFrame, images: list[str]) -> None:
        how = self.entry["labels"]
        if "votes" in how:
            self._votes.read(split, path, table, self.entry["columns"]["image"][0])
        elif "columns" in how:
            named = how["columns"]
            columns = label_columns(path, table.columns) if named == "chexpert" else named
            read_table(path, required=columns) if not {*columns} <= {*table.columns} else None
            cells = LabelCells(path)
            values = {label: [cells.read(c) for c in table[n]] for n, label in columns.items()}
            differ = 0
            for at, image in enumerate(images):
                labels: Labels = {label: column[at] for label, column in values.items()}
                if image in self._labels:
                    labels, differs = merged_labels([self._labels[image], labels])
                    differ += differs
                self._labels[image] = labels
            self.counted += cells.steps()
            step = "row has the labels of its image in the rows above (else present counts)"
            self.count(step, "label rows", len(images) - differ, len(images))
        elif "column" in how:
            self._read_lists_of_findings(path, table, images)

    def _read_lists_of_findings(self, path: Path, table: pd.DataFrame, images: list[str]) -> None:
        """Read a column of lists of findings; a blank cell says nothing of any."""
        how = self.entry["labels"]
        alone = how["alone"]
        classes = (*(finding_name(name) for name in how["classes"]), alone)
        if how["column"] not in table:
            read_table(path, required=(how["column"],))  # says which columns there are
        counts: Counter[str] = Counter()
        for image, cell in zip(images, table[how["column"]], strict=True):
            names = [finding_name(n) for n in cell.split(how["separator"]) if not is_blank(n)]
            known = [name for name in names if name in classes]
            findings = [name for name in known if name != alone]
            counts.update(
                named=len(names), known=len(known), both=bool(findings) and alone in known
            )
            shown = class_labels(findings or known, classes)
            self._labels[image] = shown if known else dict.fromkeys(classes)
        step = "finding is one of the archive's"
        self.count(step, "label cells", counts["known"], counts["named"])
        step = f"'{alone}' stands alone (else the finding counts)"
        self.count(step, "label rows", len(table) - counts["both"], len(table))

    def _add_classes(self) -> None:
        """Add the labels of a table of classes; an image that has two of them keeps neither."""
        how = self.entry.get("classes")
        if how is None:
            return
        path = self.root / how["file"]
        if not is_file(path):
            labels = sorted({label for own in how["values"].values() for label in own})
            self.said.append(f"No {path.name}: labels {' and '.join(labels)} are not known.")
            return
        table = read_table(path, required=(how["image"], how["column"]))
        classes: dict[str, set[str]] = {}
        known = 0
        for image, cell in zip(table[how["image"]], table[how["column"]], strict=True):
            if image in self._labels and cell in how["values"]:
                known += 1
                classes.setdefault(image, set()).add(cell)
        blank = dict.fromkeys(label for own in how["values"].values() for label in own)
        for image in self._labels:
            its = classes.get(image, set())
            self._labels[image] |= how["values"][min(its)] if len(its) == 1 else blank
        step = f"row of {path.name} names an image and a class"
        self.count(step, "label rows", known, len(table))
        single = sum(len(its) == 1 for its in classes.values())
        self.count("image has one class", "label rows", single, len(classes))

    # ------------------------------------------------------------------ boxes and masks

    def _read_boxes(self, tables: Mapping[str, Path], rows: Collection[_Row]) -> None:
        how = self.entry.get("boxes", {})
        if "file" not in how or next(iter(tables.values())).suffix == ".json":
            return
        for part in tables:
            name = how["file"].format(part)
            path = self.files.find(name)
            if path is None:
                self.said.append(f"No {name}: no boxes.")
                continue
            sides = how.get("corners") or how["sides"]
            table = read_table(path, required=[how["image"], how["finding"], *sides])
            table = without_repeats(path, table, list(table.columns), self.counted, self.said)
            images = {row.image for row in rows if row.split == part or name == how["file"]}
            boxes = self._marks.read_boxes(path, table, how, images)
            if "votes" not in self.entry["labels"]:
                for image, finding, _, box in boxes:
                    self._marks.add(image, finding_name(finding), [box])
                continue
            seen = [self._votes.add_box(*row) for row in boxes]
            step = f"most readers see the finding of the box ({path.name})"
            self.count(step, "boxes", sum(seen), len(seen))
        self._votes.add_phrases(self._marks)

    def _read_masks(self, path: Path) -> None:
        how = self.entry.get("masks", {})
        if "files" in how:
            images = {image.image_id for image in self.image_records}
            for file in self.files.masks():
                self._marks.read_mask_file(file, images)
        elif "column" in how:
            self._marks.read_runs(path, self._cells, self._sizes, how)

    # ------------------------------------------------------------------------ description

    def _describe(self, tables: Mapping[str, Path], rows: Collection[_Row]) -> None:
        counts = Counter(row.origin.rpartition(", ")[0] for row in rows)
        listed = ", ".join(f"{counts[str(path)]} in {path.name}" for path in tables.values())
        people = len({image.patient_id for image in self.image_records})
        views = Counter(image.view or "unknown" for image in self.image_records)
        self.said += [
            f"{self.entry['title']} {self.root}: {len(rows)} images: {listed}; of"
            f" {len(self.study_records)} studies and {people} patients. It has no reports: there"
            " are no sentences to train on.",
            f"Views: {', '.join(f'{n} {view}' for view, n in sorted(views.items()))}.",
            self._split_said(),
        ]
        if self.phrase_records:
            boxes = sum(len(phrase.boxes) for phrase in self.phrase_records)
            masks = sum(phrase.mask is not None for phrase in self.phrase_records)
            said = f"Boxes: {boxes}, of {len(self.phrase_records)} phrases"
            self.said.append(f"{said}, {masks} of them with masks." if masks else f"{said}.")
        self.said += self.entry.get("notes", [])

    def _split_said(self) -> str:
        split = self.entry.get("split", {})
        seeded = f"Split: patients 80/10/10 by a hash of their id with seed {self.seed or 0}."
        if self.seed is not None:
            return seeded
        if self._lists is not None:
            train = split["train"]
            return (
                f"Split: {split['test']} is the test set; of the patients in {train} a tenth, by a"
                " hash of their id, validate."
            )
        if "column" in split or "" not in self.files.names():
            tenth = "; of its training patients a tenth, by a hash of their id, validate"
            return f"Split: the archive's own{'' if self.files.validates() else tenth}."
        return seeded


def _column(table: pd.DataFrame, name: str | None, otherwise: str = "") -> list[str]:
    return table[name].tolist() if name in table else [otherwise] * len(table)


for _kind, _entry in entries().items():
    source(
        title=_entry["title"],
        looks=_entry["looks"],
        give=_entry["give"],
        needs=_entry["needs"],
        takes=("split_seed",),
        instead={"text_only": f"{_entry['title']} has no reports; leave out --text-only"},
    )(type(f"{_entry['title'].replace('-', '')}Source", (CatalogSource,), {"kind": _kind}))

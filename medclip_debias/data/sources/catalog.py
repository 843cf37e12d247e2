"""Archives of labels, boxes and masks: entries of ``catalog.yaml``, and its reader.

An entry says where an archive's tables, lists, boxes and masks are and what their columns hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medclip_debias.data.images.headers import identity
from medclip_debias.data.labels import Labels, label_columns
from medclip_debias.data.records import Annotations, ImageRecord, file_stem
from medclip_debias.data.sources.archive import (
    ArchiveSource,
    LabelCells,
    merged_labels,
    seeded_said,
)
from medclip_debias.data.sources.entries import ArchiveFiles, entries, view_of
from medclip_debias.data.sources.findings import (
    Marks,
    finding_name,
    read_boxes,
    read_coco,
    read_entries,
    read_masks,
    read_runs,
)
from medclip_debias.data.sources.ids import Ids, check_match, is_blank, plain_id
from medclip_debias.data.sources.image_files import is_file
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import named_tuples, origins, read_table, refuse_rows
from medclip_debias.data.sources.votes import Votes
from medclip_debias.data.splits import SPLIT_SEED, seeded_split, split_name
from medclip_debias.errors import UserError, counted
from medclip_debias.files import read_json_value

if TYPE_CHECKING:
    import pandas as pd

_PATH = r"(?i)([^/\\]+)[/\\](study[^/\\]*)[/\\][^/\\]+\.(?:jpe?g|png|dcm)$"
"""Patient and study in a path of CheXpert: ``train/patient00001/study1/view1_frontal.jpg``."""
_NO_REPORTS = "It has no reports: there are no sentences to train on."
_NO_PATIENTS = "No patient ids: every image counts as its own patient."


class CatalogSource(ArchiveSource):
    """An archive of the catalog.

    Its rows are a frame with a row an image: ``image``, ``study`` and ``patient`` ids, ``view``,
    ``split``, ``origin``, ``name`` (as the table has it) and ``files`` (the names it may have).
    """

    kind: ClassVar[str]
    required: ClassVar[tuple[str, ...]] = ()
    """More columns that a table must have."""
    optional: ClassVar[tuple[str, ...] | None] = None
    """Those that are read if they are there; None for all."""

    def __init__(self, root: Path, given: Given) -> None:
        import pandas as pd

        super().__init__(root, given)
        self.entry = entries()[self.kind]
        self.files = ArchiveFiles(root, self.entry)
        self._marks = Marks(self.count)
        self._labels: dict[str, Labels] = {}
        self._reports: dict[str, str | None] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._cells: dict[str, list[str]] = {}
        votes = "votes" in self.entry["labels"]
        self._votes = Votes(self.entry["labels"], self.count) if votes else None
        self._lists = self.files.split_lists() if self.seed is None else None
        tables = self.files.tables()
        if not tables:
            listed = ", ".join(names[0] for names in self.files.names().values())
            raise UserError(
                f"{root}: has no table of {self.entry['title']} ({listed}); check the path."
            )
        read = {
            s: self._of_list if p.suffix == ".json" else self._of_table for s, p in tables.items()
        }
        rows = pd.concat([read[split](split, path) for split, path in tables.items()])
        if rows.empty:
            listed = ", ".join(path.name for path in tables.values())
            raise UserError(f"{root}: no row of {listed} names an image; download it again.")
        first = rows.groupby("image")["split"].transform("first")
        for row in named_tuples(rows.assign(first=first)[rows["split"] != first]):
            raise UserError(
                f"{row.origin}: its image is in both parts, {row.first} and {row.split}; download"
                " the tables again."
            )
        rows = rows.drop_duplicates("image")
        self._add_images(rows)
        self._labels |= self._votes.labels() if self._votes else {}
        table = next(iter(tables.values()))
        self._read_boxes(tables, rows)
        self._read_masks(table)
        shown = [finding_name(name) for name in self.files.shown(table)]
        for image in rows["image"] if shown else ():
            present = self._marks.present.get(image, ())
            self._labels[image] = {name: float(name in present) for name in shown}
        self._add_classes()
        splits = {i.image_id: i.split for i in self.image_records} if self._votes else {}
        sizes = {**self._marks.sizes, **self.files.annotated_sizes(rows["image"])}
        self.phrase_records = self._marks.phrases(sizes, splits)
        self.add_studies(self._labels, self._reports)
        self._describe(tables, rows)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take a folder with the archive's tables; with its masks where it extends another one."""
        entry = entries()[cls.kind]
        files = ArchiveFiles(path, entry)
        if not path.is_dir():
            return Sure.NO
        if "files" in entry.get("masks", {}):
            return Sure.EXTENSION if files.masks() else Sure.NO
        try:
            tables = files.tables()
        except UserError:  # two releases: whoever opens them says so
            return Sure.RELEASE
        doubtful = {*entry.get("recognised", {}).get("of", ())}
        if not tables:
            return Sure.NO
        return Sure.LAYOUT if {p.name for p in tables.values()} & doubtful else Sure.RELEASE

    def annotations(self) -> list[Annotations]:
        return self._votes.annotations() if self._votes else []

    # --------------------------------------------------------------------------- tables

    def _of_list(self, split: str, path: Path) -> pd.DataFrame:
        import pandas as pd

        if "coco" in self.entry:
            names = read_coco(path, self._marks)
        else:
            classes = {*map(finding_name, self.files.shown(path))}
            size = self.entry["boxes"]["annotated"]
            names = read_entries(path, self.entry["labels"], classes, size, self._marks)
        self._say_once(_NO_PATIENTS)
        rows = pd.DataFrame({"origin": [*names], "name": [*names.values()]}, dtype=object)
        rows["files"] = [(name,) for name in names.values()]
        rows["image"] = rows["study"] = rows["patient"] = rows["name"].map(file_stem)
        return rows.assign(view="", split=split)

    def _say_once(self, sentence: str) -> None:
        if sentence not in self.said:
            self.said.append(sentence)

    def _of_table(self, split: str, path: Path) -> pd.DataFrame:
        import pandas as pd

        how, boxes = self.entry["columns"], self.entry.get("boxes", {})
        needed = [how[name] for name in ("patient", "study", "filled") if name in how]
        beside = [boxes["when"], *boxes["sides"]] if "when" in boxes else []
        single = how["image"] if len(how["image"]) == 1 else []
        required = [*single, *needed, *beside, *self.required]
        table = read_table(path, required, self.optional)
        columns = [name for name in how["image"] if name in table]
        if not columns:
            raise UserError(
                f"{path}: has neither column {' nor '.join(how['image'])}; download it again."
            )
        table = self._clean(path, table, columns[0], needed)

        def column(name: str | None, otherwise: str = "") -> pd.Series[str]:
            return table[name] if name in table else pd.Series(otherwise, table.index, dtype=object)

        rows = pd.DataFrame({"name": table[columns[0]], "view": column(how.get("view"))})
        rows["image"], rows["study"] = rows["name"].map(file_stem), column(how.get("study"))
        if "path" in how:
            rows["patient"], rows["study"] = table["owner"], table["study"]
            rows["image"] = rows["patient"] + "/" + rows["study"] + "/" + rows["image"]
        else:
            rows["patient"] = self._patients(path, table, rows["image"])
        self._read_labels(split, path, table, rows["image"])
        if "when" in boxes:
            for image, finding, _, box in read_boxes(
                path, table, boxes, {*rows["image"]}, self._marks
            ):
                self._marks.add(image, finding, [box])
        if "filled" in how:
            self._cells |= table[how["filled"]].groupby(rows["image"], sort=False).agg(list)
        if "sides" in self.entry:
            sides = [column(name) for name in self.entry["sides"]]
            rows["view"] = list(map(view_of, *sides, rows["name"]))
            unstated = int((rows["view"] == "FRONTAL").sum())
            if unstated:
                self.said.append(f"{path}: {unstated} frontal images are neither AP nor PA.")
        rows["origin"] = origins(path, table)
        stated = self.entry.get("split", {}) if self.seed is None else {}
        words = column(stated.get("column"), split)
        named = zip(words, rows["origin"], strict=True)
        filled = stated.get("filled", False)
        rows["split"] = [split_name(word, where) if word or filled else "" for word, where in named]
        form = self.entry.get("file", "{0}")
        places = [table[name] for name in columns]
        if "dicom" in how:
            places.insert(0, table[how["dicom"]].mask(table[how["dicom"]].map(is_blank), places[0]))
        cells = zip(*places, strict=True)
        rows["files"] = [tuple(form.format(cell, split) for cell in row) for row in cells]
        once = rows.drop_duplicates("image")
        if "key" not in self.entry:  # elsewhere an image has several rows
            step = f"image of {path.name} has a stem of its own"
            self.count(step, "rows", len(once), len(rows))
        # Numbers of studies are not unique over patients.
        owned = zip(*(once[name].tolist() for name in ("patient", "study", "image")), strict=True)
        ids = [(patient or i, f"{patient or i}/{s}" if s else i) for patient, s, i in owned]
        people = pd.Series([p for p, _ in ids], once.index, dtype=object)
        if "path" in how and "patient" in how:  # of whom there may be others than paths say
            people = column(how["patient"])[once.index].mask(lambda p: p.map(is_blank), people)
        return once.assign(patient=people, study=[study for _, study in ids])

    def _clean(
        self, path: Path, table: pd.DataFrame, image: str, needed: list[str]
    ) -> pd.DataFrame:
        """Return the rows that repeat none and have what they must."""
        key = self.entry.get("key", [image])
        key = table.columns.tolist() if key == "all" else [name for name in key if name in table]
        table = self.first_rows(path, table, key)
        if table.empty:
            raise UserError(f"{path}: has no rows; download it again.")
        if "path" in self.entry["columns"]:
            ids = table[image].str.extract(_PATH)
            step = f"path of {path.name} names patient, study and image"
            return self.keep(table.assign(owner=ids[0], study=ids[1]), ids[0].notna(), step)
        blank = table[[image, *needed]].map(is_blank)
        for name in blank if self.entry["rows"] == "refused" else ():
            refuse_rows(path, table, blank[name], f"column '{name}' is blank; fill it in.")
        step = f"row of {path.name} is filled in ({', '.join([image, *needed])})"
        return self.keep(table, ~blank.any(axis=1), step)

    def _patients(self, path: Path, table: pd.DataFrame, images: pd.Series[str]) -> list[str]:
        if "people" in self.entry:
            people = self._people({*images})
            return [people.get(image, "") for image in images]
        column = self.entry["columns"].get("patient")
        if column is None:
            if self.entry.get("header") != "now":
                self._say_once(_NO_PATIENTS)
            return [""] * len(table)
        refused = self.entry["rows"] == "refused"
        return self.ids(path, table, column) if refused else list(table[column])

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
        listed = content if isinstance(content, list) else []
        pairs = [(e.get(how["image"]), e.get(how["is"])) for e in listed if isinstance(e, dict)]
        people = {
            image: plain_id(name.partition("_")[0])
            for image, name in pairs
            if isinstance(image, str) and isinstance(name, str) and image in images
        }
        self.count(f"image is in {path.name}", "rows", len(people), len(images))
        return people

    # --------------------------------------------------------------------------- images

    def _add_images(self, rows: pd.DataFrame) -> None:
        entry, header = self.entry, self.entry.get("header")
        codes = entry.get("views", {})
        find = self._find(rows)
        unknown = 0
        for row in named_tuples(rows):
            file, patient, view = find(row.files), row.patient, row.view
            if header == "now":
                about = identity(file)
                patient, view = about.patient or row.image, about.view
                unknown += not about.patient
                self._sizes[row.image] = about.size or (entry["masks"]["side"],) * 2
            view = entry.get("view", "") if is_blank(view) else view
            view = codes.get(view.upper(), view.upper() if codes else view)
            split = self._split(row.name, row.split, patient)
            where = file, view, split, row.origin, header == "later"
            self.image_records.append(ImageRecord(row.image, row.study, patient, *where))
        if unknown:
            self.said.append(
                f"{self.root}: {unknown} images have no header that names a patient; each counts"
                " as another patient."
            )

    def _find(self, rows: pd.DataFrame) -> Callable[[tuple[str, ...]], Path]:
        """Return the search for the file of an image by the names that it may have."""
        if self.text_only:
            return lambda _: Path()
        return self._below() if self.entry["place"] == "below" else self._along_paths(rows)

    def _below(self) -> Callable[[tuple[str, ...]], Path]:
        """Return the search for images anywhere below a folder, by their names alone."""
        names = self.entry.get("tree", [])
        folder = next((f for name in names if (f := self.root / name).is_dir()), self.root)
        tree = self.tree(folder)
        if names:
            listed = sum(file_stem(name) in self._cells for name in tree.by_name)
            step = f"file of {folder.name} has a row in the table"
            self.count(step, "rows", listed, len(tree.by_name))
        return lambda files: tree.path(Path(files[0]).name, self.entry["below"])

    def _along_paths(self, rows: pd.DataFrame) -> Callable[[tuple[str, ...]], Path]:
        """Return the search for images where the paths of the table lead."""
        inner = ("", *self.entry.get("in", ()))
        folders = [Path(folder, name).as_posix() for name in inner for folder in self.files.folders]
        columns = zip(*rows["files"], strict=True)
        places = [self.locate(names, [f for f in folders if f != "."]) for names in columns]

        def find(files: tuple[str, ...]) -> Path:
            pairs = list(zip(places, files, strict=True))
            exact = (images.exact(name) for images, name in pairs)
            alike = (images.find(name) for images, name in pairs)
            return next(filter(None, chain(exact, alike)), None) or places[0].path(files[0])

        return find

    def _split(self, name: str, split: str, patient: str) -> str:
        seeded = seeded_split(patient, SPLIT_SEED if self.seed is None else self.seed)
        if self.seed is not None:
            return seeded
        split = split or seeded if self._lists is None else self._lists.get(file_stem(name), "")
        validates = split == "train" and seeded == "validate" and not self.files.validates()
        return "validate" if validates else split

    # --------------------------------------------------------------------------- labels

    def _read_labels(
        self, split: str, path: Path, table: pd.DataFrame, images: pd.Series[str]
    ) -> None:
        how = self.entry["labels"]
        if self._votes:
            self._votes.read(split, path, table, self.entry["columns"]["image"][0])
        elif "columns" in how:
            named = how["columns"]
            columns = label_columns(path, table.columns) if named == "chexpert" else named
            read_table(path, required=columns) if not {*columns} <= {*table} else None
            cells = LabelCells(path)
            values = {label: [cells.read(c) for c in table[n]] for n, label in columns.items()}
            differ = 0
            for at, image in enumerate(images):
                labels: Labels = {label: column[at] for label, column in values.items()}
                if image in self._labels:
                    labels, differs = merged_labels([self._labels[image], labels])
                    differ += differs
                self._labels[image] = labels
            self.count(cells.step, "label cells", cells.good, cells.all)
            step = "row has the labels of its image in the rows above (else present counts)"
            self.count(step, "label rows", len(images) - differ, len(images))
        elif "column" in how:
            self._read_lists_of_findings(path, table, images)

    def _read_lists_of_findings(
        self, path: Path, table: pd.DataFrame, images: pd.Series[str]
    ) -> None:
        """Read a column of lists of findings; a blank cell says nothing of any."""
        how = self.entry["labels"]
        alone = how["alone"]
        classes = (*(finding_name(name) for name in how["classes"]), alone)
        if how["column"] not in table:
            read_table(path, required=(how["column"],))  # says which columns there are
        counts: Counter[str] = Counter()
        for image, cell in zip(images, table[how["column"]], strict=True):
            names = [finding_name(n) for n in cell.split(how["separator"]) if not is_blank(n)]
            known = {name for name in names if name in classes}
            present = known - {alone} or known
            both = alone in known and present != known
            counts.update(named=len(names), known=sum(n in known for n in names), both=both)
            self._labels[image] = {n: float(n in present) if known else None for n in classes}
        step = "finding is one of the archive's"
        self.count(step, "label cells", counts["known"], counts["named"])
        step = f"'{alone}' stands alone (else the finding counts)"
        self.count(step, "label rows", len(table) - counts["both"], len(table))

    def _add_classes(self) -> None:
        """Add the labels of a table of classes; an image that has two of them keeps neither."""
        how = self.entry.get("classes")
        if how is None:
            return
        path, values = self.root / how["file"], how["values"]
        blank = dict.fromkeys(label for meant in values.values() for label in meant)
        if not is_file(path):
            labels = " and ".join(sorted(blank))
            self.said.append(f"No {path.name}: labels {labels} are not known.")
            return
        table = read_table(path, required=(how["image"], how["column"]))
        ids = {*table[how["image"]]}
        shared = len(ids & self._labels.keys())
        check_match(path, how["image"], ids, shared, Ids(self._labels), "images")
        known = table[table[how["image"]].isin(self._labels) & table[how["column"]].isin(values)]
        classes = known.groupby(how["image"])[how["column"]].agg(set)
        for image in self._labels:
            names = classes.get(image, ())
            self._labels[image] |= blank | (values[min(names)] if len(names) == 1 else {})
        step = f"row of {path.name} names an image and a class"
        self.count(step, "label rows", len(known), len(table))
        single = int((classes.map(len) == 1).sum())
        self.count("image has one class", "label rows", single, len(classes))

    # ------------------------------------------------------------------ boxes and masks

    def _read_boxes(self, tables: Mapping[str, Path], rows: pd.DataFrame) -> None:
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
            table = self.first_rows(path, table, table.columns.tolist())
            listed = rows if name == how["file"] else rows[rows["split"] == part]
            boxes = read_boxes(path, table, how, {*listed["image"]}, self._marks)
            if self._votes:
                seen = sum([self._votes.add_box(*row) for row in boxes])
                step = f"most readers see the finding of the box ({path.name})"
                self.count(step, "boxes", seen, len(boxes))
            else:
                for image, finding, _, box in boxes:
                    self._marks.add(image, finding_name(finding), [box])
        if self._votes:
            self._votes.add_phrases(self._marks)

    def _read_masks(self, path: Path) -> None:
        how = self.entry.get("masks", {})
        if "files" in how:
            images = {image.image_id for image in self.image_records}
            for file in self.files.masks():
                read_masks(file, images, self._marks)
        elif "column" in how:
            read_runs(path, self._cells, self._sizes, how, self._marks)

    # ------------------------------------------------------------------------ description

    def _describe(self, tables: Mapping[str, Path], rows: pd.DataFrame) -> None:
        counts = Counter(origin.rpartition(", ")[0] for origin in rows["origin"])
        listed = ", ".join(f"{counts[str(path)]} in {path.name}" for path in tables.values())
        people = counted(len({image.patient_id for image in self.image_records}), "patient")
        self.said += [
            f"{self.entry['title']} {self.root}: {counted(len(rows), 'image')}: {listed}; of"
            f" {counted(len(self.study_records), 'study')} and {people}."
            + ("" if self._reports else f" {_NO_REPORTS}"),
            self.views_said(),
            self._split_said(),
        ]
        if self.phrase_records:
            boxes = sum(len(phrase.boxes) for phrase in self.phrase_records)
            masks = sum(phrase.mask is not None for phrase in self.phrase_records)
            with_masks = f", {masks} of them with masks" if masks else ""
            phrases = counted(len(self.phrase_records), "phrase")
            self.said.append(f"Boxes: {boxes}, of {phrases}{with_masks}.")
        self.said += self.entry.get("notes", [])

    def _split_said(self) -> str:
        split = self.entry.get("split", {})
        if self.seed is None and self._lists is not None:
            return (
                f"Split: {split['test']} is the test set; of the patients in {split['train']} a"
                " tenth, by a hash of their id, validate."
            )
        if self.seed is None and ("column" in split or "" not in self.files.names()):
            tenth = "; of its training patients a tenth, by a hash of their id, validate"
            return f"Split: the archive's own{'' if self.files.validates() else tenth}."
        return f"Split: {seeded_said(self.seed or 0)}."


def register(kind: str, reader: type[CatalogSource] | None = None, **more: Any) -> None:
    """Register an entry with its reader; ``more`` are words of the format."""
    entry = entries()[kind]
    if reader is None:
        name = f"{entry['title'].replace('-', '')}Source"
        reader = type(name, (CatalogSource,), {"kind": kind})
    no_reports = {"text_only": f"{entry['title']} has no reports; leave out --text-only"}
    words = {"takes": ("split_seed",), "instead": no_reports} | more
    source(**{word: entry[word] for word in ("title", "looks", "give", "needs")}, **words)(reader)


for _kind, _entry in entries().items():
    if not _entry.get("reports"):  # they have a reader of their own
        register(_kind)

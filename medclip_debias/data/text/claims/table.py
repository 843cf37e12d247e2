"""The claims of a prepared set's sentences as one file, whoever read them (docs/claims.md).

One row a claim. A sentence is named by `sentence_hash`; one without a row claims nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from medclip_debias.config import json_hash
from medclip_debias.data.executor import chunks, map_pieces
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims.claim import FIELDS, Claim, Parsed
from medclip_debias.data.text.claims.lexicon import PACKAGED, Lexicon, load_lexicon
from medclip_debias.data.text.claims.rules import RuleParser
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.files import atomic_file

FILE = "claims.parquet"
COLUMNS = ("sentence", "finding", *FIELDS)
_META = b"medclip_debias"
_REMEDY = "run 'claims' again"


@dataclass(frozen=True)
class ClaimTable:
    """The claims of a set.

    Attributes:
        claims: of every distinct sentence of the set, in the order of ``PreparedSet.texts``.
        meta: ``parser``, ``lexicon`` (name, hash, content), ``content_hash`` of the set, counts.
        lexicon: the one that the claims were read with.
    """

    claims: list[tuple[Claim, ...]]
    meta: dict[str, Any]
    lexicon: Lexicon


def sentence_hash(text: str) -> str:
    """Name of a sentence: the first 16 hex digits of the SHA-256 of its UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parsed(parser: RuleParser, texts: list[str]) -> list[Parsed]:
    return [parser.parse(text) for text in texts]


def import_claims(prepared: PreparedSet, table: Path, lexicon: Lexicon) -> dict[str, Any]:
    """Check a table that another program wrote, and store it as the claims of the set.

    Args:
        prepared: the set.
        table: CSV or Parquet. A row names its sentence in ``sentence`` (`sentence_hash`) or in
            ``text``, and has ``finding`` and ``polarity``; the other columns of `COLUMNS` may be
            missing or blank.
        lexicon: says which findings there are.
    """
    frame = read_table(table, required=("finding", "polarity"))
    if not {"sentence", "text"} & set(frame.columns):
        raise UserError(f"{table}: has neither a column 'sentence' nor 'text'; add one of them.")
    unknown = (
        f"names a sentence that is not in {prepared.folder}; write the table for this set"
        " ('sentence' is the start of a SHA-256, see docs/claims.md)"
    )
    rows = list(zip(frame.index, frame.to_dict("records"), strict=True))
    claims = _claims_of(prepared, table, rows, lexicon, unknown)
    repeated = len(rows) - sum(map(len, claims))
    counts = {"repeated_rows": repeated}
    return _store(prepared, claims, lexicon, f"table {table.name}", counts)


def read_claims(prepared: PreparedSet) -> ClaimTable:
    """Read the claims that are stored beside a set, and check that they fit it."""
    if len(prepared.parts) > 1:
        return _of_parts(prepared)
    path = prepared.folder / FILE
    with _readable(path):
        meta = _stored(path)
        lexicon = Lexicon.model_validate(meta["lexicon"]["content"])
        rows = pd.read_parquet(path)[list(COLUMNS)].to_dict("records")
    if meta.get("content_hash") != prepared.content_hash:
        raise UserError(f"{path}: holds the claims of another state of the set; {_REMEDY}.")
    unknown = f"names no sentence of the set; {_REMEDY}"
    claims = _claims_of(prepared, path, list(enumerate(rows, start=1)), lexicon, unknown)
    return ClaimTable(claims, meta, lexicon)


def _claims_of(
    prepared: PreparedSet,
    table: Path,
    rows: Sequence[tuple[Any, Mapping[Any, Any]]],
    lexicon: Lexicon,
    unknown: str,
) -> list[tuple[Claim, ...]]:
    """The claims of each text of a set, of numbered rows; ``unknown`` says what fits no text."""
    numbers = {sentence_hash(text): number for number, text in enumerate(prepared.texts)}
    claim_sets: list[set[Claim]] = [set() for _ in numbers]
    for row, values in rows:
        where = f"{table}, row {row}"
        name = str(values.get("sentence", "")) or sentence_hash(str(values.get("text", "")))
        if name not in numbers:
            raise UserError(f"{where}: {unknown}.")
        claim_sets[numbers[name]].add(_checked_claim(where, values, lexicon))
    return [tuple(sorted(claims)) for claims in claim_sets]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Make one sentence of what reading a file of claims may raise."""
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        raise UserError(
            f"{path}: the set has no claims yet; run 'claims {path.parent}' first."
        ) from None
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise UserError(
            f"{path}: is not a table of claims of this program ({type(error).__name__}); {_REMEDY},"
            f" with --table for a table of your own."
        ) from error


def _stored(path: Path) -> dict[str, Any]:
    """What a file of claims says of itself."""
    import pyarrow.parquet as pq

    meta: dict[str, Any] = json.loads((pq.read_schema(path).metadata or {})[_META])
    return meta


def _of_parts(prepared: PreparedSet) -> ClaimTable:
    """The claims of several sets; a sentence that two of them have says the same in both."""
    tables = [read_claims(part) for part in prepared.parts]
    claims: dict[str, tuple[Claim, ...]] = {}
    for part, table in zip(prepared.parts, tables, strict=True):
        if table.lexicon != tables[0].lexicon:
            raise UserError(
                f"{part.folder / FILE}: was read with another lexicon than"
                f" {prepared.parts[0].folder / FILE}; run 'claims' again with the same one."
            )
        for text, stated in zip(part.texts, table.claims, strict=True):
            if claims.setdefault(text, stated) != stated:
                raise UserError(
                    f"{part.folder / FILE}: a sentence has other claims than in the sets before it;"
                    " run 'claims' again, with the same rules."
                )
    return ClaimTable([claims[text] for text in prepared.texts], tables[0].meta, tables[0].lexicon)


def claims_hash(prepared: PreparedSet | Path) -> str:
    """16 hex digits that name what the claims of a set say: rows and lexicon."""
    if isinstance(prepared, PreparedSet) and len(prepared.parts) > 1:
        return json_hash([claims_hash(part) for part in prepared.parts])
    path = (prepared.folder if isinstance(prepared, PreparedSet) else prepared) / FILE
    with _readable(path):
        return str(_stored(path)["claims_hash"])


def claim_set(
    folder: Path,
    lexicon: Path | str | None = None,
    table: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    cluster: str | None = None,
) -> dict[str, Any]:
    """What the verb does: store the claims of a set, read by rules or taken from a table.

    Returns:
        Counts: sentences, those with and without a claim, claims, corrected words.
    """
    prepared = PreparedSet.open(folder)
    words = load_lexicon(lexicon)
    if table is not None:
        return import_claims(prepared, table, words)
    languages = prepared.meta.get("languages", {})
    others = sum(reports for code, reports in languages.items() if code != "en")
    if others and (words.base or words.name in PACKAGED):
        raise UserError(
            f"{folder}: {others:,} of its reports are not in English, and the lexicon is English;"
            " give the claims of another program with --table, or a --lexicon without a base."
        )
    parser = RuleParser(words)
    parsed: list[Parsed] = []
    pieces = chunks(prepared.texts, 256)
    for piece in map_pieces(partial(_parsed, parser), pieces, cluster=cluster):
        parsed += piece
        if progress is not None:
            progress(len(parsed), len(prepared.texts))
    claims = [sentence.claims for sentence in parsed]
    counts = {"corrected_words": sum(sentence.corrected for sentence in parsed)}
    return _store(prepared, claims, words, parser.name, counts)


def _store(
    prepared: PreparedSet,
    claims: Sequence[Sequence[Claim]],
    lexicon: Lexicon,
    parser: str,
    counts: dict[str, Any],
) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = prepared.texts
    rows = [
        (sentence_hash(text), claim.finding, *(getattr(claim, name) for name in FIELDS))
        for text, claims_of_text in zip(texts, claims, strict=True)
        for claim in claims_of_text
    ]
    frame = pd.DataFrame(rows, columns=list(COLUMNS), dtype="str")
    content = lexicon.model_dump(mode="json")
    silent = sum(not claims_of_text for claims_of_text in claims)
    counts = {
        "sentences": len(texts),
        "with_claims": len(texts) - silent,
        "without_claims": silent,
        "claims": len(rows),
        **counts,
    }
    meta = {
        "parser": parser,
        "lexicon": {"name": lexicon.name, "hash": lexicon.hash, "content": content},
        "content_hash": prepared.content_hash,
        "claims_hash": json_hash([list(map(list, rows)), lexicon.hash]),
        "counts": counts,
    }
    table = pa.Table.from_pandas(frame, preserve_index=False)
    table = table.replace_schema_metadata({_META: json.dumps(meta).encode()})
    with atomic_file(prepared.folder / FILE) as temporary:
        pq.write_table(table, temporary)
    return {"parser": parser, "lexicon": f"{lexicon.name} {lexicon.hash}", **counts}


def _checked_claim(where: str, values: Mapping[Any, Any], lexicon: Lexicon) -> Claim:
    """Make a claim of a row that another program wrote; ``where`` is file and row."""
    finding = str(values["finding"])
    named = lexicon.named(finding)
    if named not in lexicon.ancestors:
        raise UserError(
            f"{where}: the lexicon '{lexicon.name}' has no finding of that name"
            f"{did_you_mean(finding, lexicon.names)}; rename it, or add it with --lexicon."
        )
    fields: dict[str, str] = {}
    for column, allowed in FIELDS.items():
        value = str(values.get(column) or ("certain" if column == "certainty" else ""))
        if value not in allowed:
            shown = ", ".join(v or "blank" for v in allowed)
            raise UserError(f"{where}: column '{column}' must be one of: {shown}.")
        fields[column] = value
    return Claim(named, **fields)

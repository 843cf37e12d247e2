"""SigLIP's tokenizers, against the definition of SentencePiece's unigrams and the processors'."""

import json
import re
import string

import pytest

from medclip_debias.errors import UserError
from medclip_debias.models.peers.tokenizers import PieceTokenizer, read_pieces

from .conftest import UNIGRAMS, spiece

TEXTS = ["No effusion.", "fusion, no_fusion", "  It IS   a tail!  ", "...", "", "naïve effusion"]


def likeliest(words, pieces):
    """The likeliest way to cut a text, over all ways; unknown letters are one run."""
    scores = dict(pieces)
    worst = min(scores.values()) - 10
    best = {0: (0.0, [])}
    for end in range(1, len(words) + 1):
        found = []
        for start in range(end):
            piece = words[start:end]
            total, cut = best[start]
            if piece in scores and piece not in ("<pad>", "</s>", "<unk>"):
                found.append((total + scores[piece], [*cut, piece]))
            elif len(piece) == 1:
                found.append((total + worst, [*cut, "<unk>"]))
        best[end] = max(found, key=lambda one: one[0])
    cut = best[len(words)][1]
    return [p for n, p in enumerate(cut) if p != "<unk>" or n == 0 or cut[n - 1] != "<unk>"]


def published(text):
    """What SigLIP's processor does: lower case, no ASCII punctuation, single blanks."""
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\s+", " ", text).strip()


def expected(text, max_tokens=64):
    numbers = {piece: n for n, (piece, _) in enumerate(UNIGRAMS)}
    # Pieces never cross a blank, so that words can be cut one by one.
    words = ["▁" + word for word in published(text).split(" ") if word]
    pieces = [piece for word in words for piece in likeliest(word, UNIGRAMS)]
    return [*[numbers[piece] for piece in pieces][: max_tokens - 1], 1]


def test_a_sentencepiece_file_gives_the_likeliest_pieces_of_the_cleaned_text(tmp_path):
    spiece(tmp_path / "spiece.model")
    found = read_pieces(tmp_path)
    assert found.encode(TEXTS, 64) == [expected(text) for text in TEXTS]
    assert found.encode(TEXTS[:1], 3) == [expected(TEXTS[0], 3)]
    assert (found.end_id, found.pad_id) == (1, 1)  # SigLIP fills up with its end token
    ids, mask = found.pad(found.encode(TEXTS[:2], 64))
    assert ids.shape == mask.shape
    assert set(ids[mask == 0].tolist()) <= {1}
    found.save(tmp_path)
    again = PieceTokenizer.load(tmp_path)
    assert again.encode(TEXTS, 64) == found.encode(TEXTS, 64)
    # What was cleaned once is not changed by being cleaned again.
    assert read_pieces(tmp_path).encode(TEXTS, 64) == found.encode(TEXTS, 64)
    assert read_pieces(tmp_path, "canonical_spaced").encode(["no_no"], 64) == [[3, 3, 1]]


def test_gemmas_byte_pairs_are_lowered_and_filled_with_pad(tmp_path):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    table = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", "n", "o", "!", "no", "<0xC3>", "<0xAF>"]
    made = Tokenizer(
        models.BPE(
            vocab={word: n for n, word in enumerate(table)},
            merges=[("n", "o")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.save(str(tmp_path / "tokenizer.json"))
    found = read_pieces(tmp_path)
    assert found.encode(["No NO!", "ï"], 64) == [[8, 4, 8, 7, 1], [9, 10, 1]]
    assert found.pad_id == 0
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": {"content": "<eos>"}}))
    assert read_pieces(tmp_path).pad_id == 1


def test_what_is_no_tokenizer_of_siglip_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"neither tokenizer\.json nor spiece\.model"):
        read_pieces(tmp_path)
    path = spiece(tmp_path / "spiece.model", kind=2)
    with pytest.raises(UserError, match=r"no unigrams \(its model type is 2\)"):
        read_pieces(tmp_path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UserError, match="cannot be read as a SentencePiece model"):
        read_pieces(tmp_path)
    spiece(path, [row for row in UNIGRAMS if row[0] != "</s>"])
    with pytest.raises(UserError, match="lacks </s> or <eos>"):
        read_pieces(tmp_path)
    table = "BAAAAAAAAAA" + "a" * 4001  # one replacement of thousands of letters
    content = {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": table},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [["</s>", 0.0]]},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(
        UserError, match=r"normalizer \(Precompiled\) with settings|not a tokenizer"
    ):
        read_pieces(tmp_path)

"""Tokenizers of CLIP and SigLIP by their definitions, and what is done to a text before."""

from __future__ import annotations

import importlib
import json
import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from medclip_debias.errors import UserError
from medclip_debias.models.peers.families import repaired, words_only
from medclip_debias.models.peers.tokenizers import ClipTokenizer, PieceTokenizer, read_pieces

from .conftest import UNIGRAMS, spiece

REPORT_LETTERS = st.sampled_from("abXY 0123456789.,;:!?-\n()/'é\u2019\ufffd")
CLIP_LETTERS = st.sampled_from("ab &;#39lt\"'\u201c\u201d\u2019\xa0<>\xe2\x80\x99")
TEXTS = ["No effusion.", "fusion, no_fusion", "  It IS   a tail!  ", "...", "", "naïve effusion"]


def published_words(text):
    """`process_text` of GLoRIA, CARZero and AFLoc; but a sentence of one word is kept, not lost."""
    points = re.split("[0-9]+\\.", text.replace("\n", " "))
    words = []
    for sentence in (part for point in points for part in point.split(".")):
        tokens = re.findall(r"\w+", sentence.replace("\ufffd\ufffd", " ").lower())
        kept = [token.encode("ascii", "ignore").decode("ascii") for token in tokens]
        words += [token for token in kept if token]
    return " ".join(words)


@given(st.text(REPORT_LETTERS, max_size=40))
@example("Łódź, naïve: № ２ cm\u2028Ünclear")
def test_words_are_those_of_the_published_code(text):
    assert words_only(text) == published_words(text)


@pytest.fixture(scope="module")
def basic_clean(open_clip_model):
    return importlib.import_module("open_clip_networks.tokenizer").basic_clean


@given(text=st.text(CLIP_LETTERS, max_size=30))
def test_texts_for_clip_are_mended_as_open_clip_does(basic_clean, text):
    assert repaired(text) == basic_clean(text)


def test_clips_tokenizer_is_that_of_open_clip(open_clip_model, merges_file):
    published = importlib.import_module("open_clip_networks.tokenizer").SimpleTokenizer()
    tokenizer = ClipTokenizer.from_merges(merges_file)
    assert tokenizer.size == 49408
    for text in (
        "No focal consolidation, pleural effusion or pneumothorax.",
        "There's  a 2.5cm   nodule\nin the RIGHT upper lobe;it's unchanged.",
        "bibasilar subsegmental atelectasis (mild)!!",
    ):
        assert tokenizer.encode([text], 77) == [[49406, *published.encode(text), 49407]]
    assert len(tokenizer.encode(["a " * 500], 77)[0]) == 77
    # Ids that OpenAI's documentation and every user of CLIP knows.
    cat = [49406, 320, 1125, 539, 320, 2368, 49407]
    assert tokenizer.encode(["a photo of a cat"], 77) == [cat]


def test_a_damaged_merges_file_is_named(merges_file, tmp_path):
    content = merges_file.read_bytes()
    for damaged in (content[: len(content) // 2], b"a b\n" * 20):
        (tmp_path / "merges.txt.gz").write_bytes(damaged)
        with pytest.raises(UserError, match=r"merges\.txt\.gz: "):
            ClipTokenizer.from_merges(tmp_path / "merges.txt.gz")


def likeliest(word, scores):
    """The likeliest way to cut a word, over all ways; unknown letters are one run."""
    worst = min(scores.values()) - 10
    best = {0: (0.0, [])}
    for end in range(1, len(word) + 1):
        cuts = []
        for start in range(end):
            piece, (total, cut) = word[start:end], best[start]
            if piece in scores and piece not in ("<pad>", "</s>", "<unk>"):
                cuts.append((total + scores[piece], [*cut, piece]))
            elif len(piece) == 1:
                cuts.append((total + worst, [*cut, "<unk>"]))
        best[end] = max(cuts, key=lambda one: one[0])
    cut = best[len(word)][1]
    return [p for n, p in enumerate(cut) if p != "<unk>" or n == 0 or cut[n - 1] != "<unk>"]


def expected_pieces(text, max_tokens=64):
    """SigLIP's processor: lower case, no ASCII punctuation, single blanks; then its unigrams."""
    clean = text.lower().translate(str.maketrans("", "", string.punctuation))
    numbers = {piece: n for n, (piece, _) in enumerate(UNIGRAMS)}
    # Pieces never cross a blank, so that words can be cut one by one.
    pieces = [p for word in clean.split() for p in likeliest("▁" + word, dict(UNIGRAMS))]
    return [*[numbers[piece] for piece in pieces][: max_tokens - 1], 1]


def test_a_sentencepiece_file_gives_the_likeliest_pieces_of_the_cleaned_text(tmp_path):
    spiece(tmp_path / "spiece.model")
    tokenizer = read_pieces(tmp_path)
    expected = [expected_pieces(text) for text in TEXTS]
    assert tokenizer.encode(TEXTS, 64) == expected
    assert tokenizer.encode(TEXTS[:1], 3) == [expected_pieces(TEXTS[0], 3)]
    ids, mask = tokenizer.pad(tokenizer.encode(TEXTS[:2], 64))
    assert set(ids[mask == 0].tolist()) <= {1}  # SigLIP fills up with its end token
    tokenizer.save(tmp_path)
    assert PieceTokenizer.load(tmp_path).encode(TEXTS, 64) == expected
    # What was cleaned once is not changed by being cleaned again.
    assert read_pieces(tmp_path).encode(TEXTS, 64) == expected
    assert read_pieces(tmp_path, "canonical_spaced").encode(["no_no"], 64) == [[3, 3, 1]]


def test_gemmas_byte_pairs_are_lowered_and_filled_with_pad(tmp_path):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    table = ["<pad>", "<eos>", "<bos>", "<unk>", "▁", "n", "o", "!", "no", "<0xC3>", "<0xAF>"]
    vocabulary = {word: n for n, word in enumerate(table)}
    options = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    gemma = Tokenizer(models.BPE(vocab=vocabulary, merges=[("n", "o")], **options))
    gemma.normalizer = normalizers.Replace(" ", "▁")
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_pieces(tmp_path)
    assert tokenizer.encode(["No NO!", "ï"], 64) == [[8, 4, 8, 7, 1], [9, 10, 1]]
    assert tokenizer.pad_id == 0
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": {"content": "<eos>"}}))
    assert read_pieces(tmp_path).pad_id == 1


def test_what_is_no_tokenizer_of_siglip_is_refused(tmp_path):
    def refused(words):
        with pytest.raises(UserError, match=words):
            read_pieces(tmp_path)

    refused(r"neither tokenizer\.json nor spiece\.model")
    spiece(tmp_path / "spiece.model", kind=2)
    refused(r"no unigrams \(its model type is 2\)")
    table = "BAAAAAAAAAA" + "a" * 4001  # one replacement of thousands of letters
    normalizer = {"type": "Precompiled", "precompiled_charsmap": table}
    model = {"type": "Unigram", "unk_id": 0, "vocab": [["</s>", 0.0]]}
    content = json.dumps({"normalizer": normalizer, "model": model})
    (tmp_path / "tokenizer.json").write_text(content)
    refused(r"normalizer \(Precompiled\) with settings|not a tokenizer")

"""What is done to a text before it is cut into tokens, as the authors' code does it."""

import importlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.models.peers.families import repaired, words_only
from medclip_debias.models.peers.importing import import_model

REPORT_LETTERS = st.sampled_from("abXY 0123456789.,;:!?-\n()/'é\u2019\ufffd")

CLIP_LETTERS = st.sampled_from("ab &;#39lt\"'\u201c\u201d\u2019\xa0<>\xe2\x80\x99")


def published_words(text):
    """`process_text` of GLoRIA, CARZero and AFLoc; but a sentence of one word is kept, not lost."""
    points = re.split("[0-9]+\\.", text.replace("\n", " "))
    words = []
    for sentence in (part for point in points for part in point.split(".")):
        tokens = re.findall(r"\w+", sentence.replace("\ufffd\ufffd", " ").lower())
        kept = [token.encode("ascii", "ignore").decode("ascii") for token in tokens]
        words += [token for token in kept if token]
    return " ".join(words)


@given(st.text(REPORT_LETTERS, max_size=40) | st.text(max_size=20))
def test_words_are_those_of_the_published_code(text):
    assert words_only(text) == published_words(text)


def test_an_enumeration_is_no_word():
    text = "1. No effusion.\n2. Nodule of 2.5 cm."
    assert words_only(text) == "no effusion nodule of 5 cm" == published_words(text)


@pytest.fixture(scope="module")
def basic_clean(open_clip_model):
    return importlib.import_module("open_clip_networks.tokenizer").basic_clean


@given(text=st.text(CLIP_LETTERS, max_size=30))
def test_texts_for_clip_are_mended_as_open_clip_does(basic_clean, text):
    assert repaired(text) == basic_clean(text)


@pytest.mark.parametrize(
    ("broken", "plain"),
    [
        ("\u201cNo\u201d effusion", '"No" effusion'),
        ("No effusion &amp; no oedema", "No effusion & no oedema"),
        ("patient\xe2\x80\x99s left lung", "patient's left lung"),
    ],
)
def test_curly_quotes_and_entities_reach_clip_as_plain_ones(broken, plain, basic_clean):
    assert repaired(broken) == plain == basic_clean(broken)


def test_biovil_reads_a_prompt_without_the_marks_at_its_end(biovil_file, cxr_bert_folder, tmp_path):
    """`tokenize_input_prompts` of hi-ml: ``prompt.rstrip("!?.")``."""
    peer = import_model("biovil", biovil_file, tmp_path / "peer", text=cxr_bert_folder)
    prompts = ["No pleural effusion.", "left?!.", "No. left"]
    stripped = ["No pleural effusion", "left", "No. left"]
    assert peer.token_ids(prompts) == peer.tokenizer.encode(stripped, peer.max_tokens)
    assert peer.token_ids(prompts) != peer.tokenizer.encode(prompts, peer.max_tokens)

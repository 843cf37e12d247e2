"""Choose the prompts of a class, of a list of candidates, by how many training reports say them.

    medclip-debias prepare DATA REPORTS --text-only
    python scripts/choose_prompts.py REPORTS scripts/prompts/openi_candidates.yaml

prints every candidate with the number of training studies that say it, and the prompt set that is
left: of each side the first candidates, at most 3 (of No Finding's negative side 8), that at least
3 training studies say. A positive prompt counts in sentences that deny nothing. Only sentences of
the split `train` are read, and no label.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

from commands import run_script
from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.prompt_checks import bare_words
from medclip_debias.grounding.denials import is_groundable

LEAST, MOST, MOST_FINDINGS = 3, 3, 8


def studies_that_say(prompts: Iterable[str], sentences: list[tuple[str, str]]) -> dict[str, int]:
    """How many studies have the words of each prompt, unbroken, in one sentence (study, text)."""
    bare = [(study, f" {bare_words(text)} ") for study, text in sentences]
    words = {prompt: f" {bare_words(prompt)} " for prompt in prompts}
    return {
        prompt: len({study for study, text in bare if said in text})
        for prompt, said in words.items()
    }


def choose(candidates: PromptSet, data: PreparedSet) -> tuple[PromptSet, dict[str, dict[str, int]]]:
    """Return the chosen set, and the counts of every candidate by side."""
    training = set(data.studies.loc[data.studies["split"] == "train", "study_id"])
    table = data.sentences[data.sentences["study_id"].isin(training)]
    sentences = list(zip(table["study_id"], table["text"], strict=True))
    stated = [(study, text) for study, text in sentences if is_groundable(text)]
    counts = {
        "positive": studies_that_say(_prompts(candidates, "positive"), stated),
        "negative": studies_that_say(_prompts(candidates, "negative"), sentences),
    }
    classes = {}
    for name, sides in candidates.classes.items():
        chosen = {}
        for side in ("positive", "negative"):
            most = MOST_FINDINGS if (name, side) == ("No Finding", "negative") else MOST
            said = [text for text in getattr(sides, side) if counts[side][text] >= LEAST]
            if not said:
                raise UserError(
                    f"{name}: no {side} candidate is said by {LEAST} training studies; add others."
                )
            chosen[side] = said[:most]
        classes[name] = chosen
    return load_prompts({"name": candidates.name, "classes": classes}), counts


def _prompts(candidates: PromptSet, side: str) -> list[str]:
    return sorted({text for sides in candidates.classes.values() for text in getattr(sides, side)})


def main(prepared: Path, candidates: Path) -> None:
    """Print how many training studies say each candidate, then the prompt set as YAML."""
    known = load_prompts(candidates)
    chosen, counts = choose(known, PreparedSet.open(prepared))
    for name, sides in known.classes.items():
        for side in ("positive", "negative"):
            kept = getattr(chosen.classes[name], side)
            for text in getattr(sides, side):
                mark = "*" if text in kept else " "
                print(f"# {mark} {counts[side][text]:5d}  {name}, {side}: {text}")
    print(
        yaml.safe_dump(
            chosen.model_dump(mode="json"), sort_keys=False, width=100, default_flow_style=None
        )
    )


if __name__ == "__main__":
    sys.exit(run_script(main))

"""The rules: what the terms of a sentence claim (docs/claims.md says them in words)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from medclip_debias.data.text.claims.claim import Claim, Parsed
from medclip_debias.data.text.claims.lexicon import Lexicon, load_lexicon
from medclip_debias.data.text.claims.places import (
    Place,
    is_modifier,
    is_noun,
    list_before,
    places,
    severity_before,
    trailing_place,
)
from medclip_debias.data.text.claims.scan import Item, Scanner

PARSER = "rules-3"
"""Name of this parser; a change of what it reads changes the name."""


@dataclass(slots=True)
class Scope:
    """How a place of a sentence is meant; ``reach`` is how far a doubt goes."""

    denied: bool = False
    unsure: bool = False
    aside: bool = False
    reach: str = ""


class RuleParser:
    """Reads the claims of sentences by the terms of a lexicon.

    >>> sorted(RuleParser().parse("No effusion or pneumothorax.").claims)[0].finding
    'pleural_effusion'
    """

    def __init__(self, lexicon: Lexicon | None = None) -> None:
        self.lexicon = load_lexicon() if lexicon is None else lexicon
        self.name = PARSER
        self._scanner = Scanner(self.lexicon)

    def parse(self, text: str) -> Parsed:
        items, corrected = self._scanner.scan(text)
        stated: list[Claim] = []
        implied: list[Claim] = []
        carried = Place()
        for clause in _clauses(items):
            exception = bool(clause) and clause[0].has("exception")
            scopes = _scopes(clause)
            places_of = places(clause, carried)
            carried = trailing_place(clause)
            for i, where in places_of.items():
                if scopes[i].aside:
                    continue
                for name in clause[i].kinds.get("finding", ()):
                    stated += [_claim(name, scopes[i], place) for place in _sided(where, scopes[i])]
            bound = self._states(clause, scopes, stated, implied)
            for i in set(places_of) - bound if not exception else ():
                if scopes[i].denied and not scopes[i].aside:
                    for name in clause[i].kinds.get("statement", ()):
                        implied += self._denial(self.lexicon.statements[name].denies, scopes[i])
        return Parsed(self._consistent(stated, implied), corrected)

    # ------------------------------------------------------------------ structures

    def _states(
        self, clause: Sequence[Item], scopes: list[Scope], stated: list[Claim], implied: list[Claim]
    ) -> set[int]:
        """Add claims of structures in a state ("clear lungs"); return the states' indices."""
        taken: set[int] = set()
        pending: list[int] = []
        last: list[int] = []
        used: set[int] = set()
        for i, item in enumerate(clause):
            if item.text == "with":
                pending = []
            if item.has("structure") and i not in used and not _only_a_place(clause, i):
                pending.append(i)
            if not item.has("state") or item.claimed:
                continue
            ahead = _structures_ahead(clause, i)
            if ahead and (not pending or _apart(clause, pending[-1], i)):
                bound = ahead
                used |= set(ahead)
            elif (
                pending
                and _apart(clause, pending[-1], i)
                and len(clause) > i + 2
                and clause[i + 1].has("joins")
                and clause[i + 2].has("finding")
            ):
                continue  # "stable heart size, enlarged and tortuous aorta"
            elif pending and pending != [i]:
                bound = [p for p in pending if p != i]
            else:
                bound = last
            if not bound:
                continue
            pending, last = [], bound
            taken.add(i)
            severity = severity_before(clause, i)
            for at in bound:
                self._state(clause, at, i, replace(scopes[i]), severity, stated, implied)
        return taken

    def _state(
        self,
        clause: Sequence[Item],
        at: int,
        i: int,
        scope: Scope,
        severity: str,
        stated: list[Claim],
        implied: list[Claim],
    ) -> None:
        side = _side_of(clause, at)
        for name in clause[at].kinds["structure"]:
            structure = self.lexicon.structures[name]
            for state in clause[i].kinds["state"]:
                if state in structure.states:
                    for finding in structure.states[state]:
                        unsure = scope.unsure or finding.endswith("?")
                        meant = replace(scope, unsure=unsure)
                        named = self.lexicon.named(finding.removesuffix("?"))
                        place = [Place(side=side, severity=severity)]
                        stated += [_claim(named, meant, p) for p in _sided(place, meant)]
                elif (state in structure.fine and not scope.denied and not scope.aside) or (
                    state == "abnormal" and scope.denied
                ):
                    clear = structure.clear if state == "clear" else None
                    denies = structure.denies if clear is None else clear
                    implied += self._denial(denies, scope, side)

    def _denial(self, names: Sequence[str], scope: Scope, side: str = "") -> list[Claim]:
        certainty = "uncertain" if scope.unsure else "certain"
        side = "" if side == "both" else side
        denied = dict.fromkeys(map(self.lexicon.named, names))
        return [Claim(name, "absent", certainty, side) for name in denied]

    def _consistent(self, stated: list[Claim], implied: list[Claim]) -> tuple[Claim, ...]:
        """Drop what a normal statement denies and the same sentence states: "clear except for"."""
        present = {
            above
            for claim in stated
            if claim.present
            for above in self.lexicon.ancestors[claim.finding]
        }
        named = {claim.finding for claim in stated}
        left_implied = [c for c in implied if c.finding not in present and c.finding not in named]
        return tuple(sorted({*stated, *left_implied}))


def _clauses(items: Sequence[Item]) -> list[list[Item]]:
    """Cut where a scope ends for good; "there is" and "but" begin a clause."""
    clauses: list[list[Item]] = [[]]
    for i, item in enumerate(items):
        if item.has("ends", "exception"):
            clauses.append([item])
        elif item.text == ";" and _is_listed(clauses[-1], items[i + 1 :]):
            clauses[-1].append(Item((",",), {"comma": ("",)}))
        elif item.has("stop"):
            clauses.append([])
        else:
            clauses[-1].append(item)
    return [clause for clause in clauses if clause]


_PREDICATES = (
    *("verbs", "affirmed", "state", "ends", "negation_before", "negation_after"),
    *("uncertainty_before", "uncertainty_list", "set_aside"),
)


def _is_listed(clause: Sequence[Item], rest: Sequence[Item]) -> bool:
    """Whether a bare finding behind a semicolon is one more of a differential's."""
    if not any(item.has("uncertainty_list") for item in clause):
        return False
    end = next((i for i, item in enumerate(rest) if item.has("stop")), len(rest))
    return any(map(is_noun, rest[:end])) and not any(i.has(*_PREDICATES) for i in rest[:end])


_CLOSING = ("affirmed", "negation_after", "uncertainty_after")


def _scopes(clause: Sequence[Item]) -> list[Scope]:
    """How each item of a clause is meant: denied, unsure, or set aside."""
    now = Scope()
    scopes: list[Scope] = []
    fresh = True  # no finding since the scope began
    for i, item in enumerate(clause):
        fresh = fresh and not (is_noun(item) or item.has("state", "structure"))
        if item.has("negation_before"):
            if item.has("state"):  # "clear of": the lungs are clear, what follows is denied
                scopes.append(replace(now))
            now = Scope(denied=True, aside=now.aside)
            fresh = True
            if item.has("state"):
                continue
        elif item.has("uncertainty_list"):
            now = replace(now, unsure=True, reach="list")
        elif item.has("uncertainty_before"):
            now = replace(now, unsure=True, reach=now.reach or "phrase")
        elif item.has("set_aside"):
            now = replace(now, aside=True)
        elif item.has("uncertainty_here", "otherwise"):
            now = replace(now, unsure=True)
        elif item.text == "with":
            now = Scope(aside=now.aside)
        elif item.has("explains") and (i == 0 or clause[i - 1].has("verbs", "affirmed", "comma")):
            now = replace(now, denied=False)  # said of the clause: "no effusion, consistent with"
        elif item.has("joins", "comma"):
            if now.reach == "phrase" and item.has("comma") and _only_of_a_place(clause, i):
                now = Scope(aside=now.aside)
            now = now if fresh else _after_join(clause, i, now)
        scopes.append(replace(now))
        closes = item.has(*_CLOSING) and not _attributive(clause, i)
        if closes and not (item.has("uncertainty_before", "uncertainty_list") or fresh):
            now = Scope()
    for i, item in enumerate(clause):
        if "normal" in item.kinds.get("state", ()) and not scopes[i].denied:
            for j in _subjects(clause, i):
                scopes[j].denied = True
        doubts = item.has("uncertainty_before", "uncertainty_list", "uncertainty_here")
        doubted = item.has("uncertainty_after") and not (
            doubts and any(map(is_noun, clause[i + 1 :]))
        )
        denies = item.has("negation_after") or (item.text == "no" and item is clause[-1])
        denies = denies and not _of_another_image(clause[i + 1 :])
        for j in list_before(clause, i) if doubted or denies else ():
            scopes[j].unsure = scopes[j].unsure or doubted
            scopes[j].denied = scopes[j].denied or denies
        if "resolved" in item.kinds.get("change", ()):
            for j in list_before(clause, i):
                scopes[j].denied = scopes[j].denied or clause[j].has("state")
        if item.has("alternative") or item.text in ("or", "/"):
            neighbours = _neighbours(clause, i)
            # "Atelectasis versus contusion": the lexicon need not know both.
            alone = item.has("alternative") and item.text != "and or"
            for j in neighbours if alone or len(neighbours) == 2 else ():
                scopes[j].unsure = scopes[j].unsure or not scopes[j].denied
    return scopes


_OTHER_IMAGES = ("prior", "previous", "previously", "earlier", "before", "comparison", "lateral")
_SKIPPED = ("on", "in", "at", "from", "the", "any", "most", "recent")


def _of_another_image(following: Sequence[Item]) -> bool:
    """Whether what is not seen is not seen there: "a nodule, not seen on the prior study"."""
    words = (word for item in following for word in item.words if word not in _SKIPPED)
    return next(words, "") in _OTHER_IMAGES


def _only_of_a_place(clause: Sequence[Item], comma: int) -> bool:
    """Whether the doubt before a comma is of a place: "probably within the lobe, an opacity"."""
    for i in range(comma - 1, -1, -1):
        if clause[i].has("uncertainty_before"):
            between = clause[i + 1 : comma]
            return not clause[i].has("uncertainty_after") and any(map(is_modifier, between))
        if is_noun(clause[i]) or clause[i].has("state", "structure"):
            return False
    return False


def _attributive(clause: Sequence[Item], i: int) -> bool:
    """Whether a word of sight only describes the next of a list: "effusion or visible edema"."""
    following = clause[i + 1] if i + 1 < len(clause) else None
    describes = following is not None and (is_noun(following) or is_modifier(following))
    return describes and i > 0 and clause[i - 1].has("joins", "comma")


def _after_join(clause: Sequence[Item], i: int, now: Scope) -> Scope:
    """Whether a scope goes on behind "and", "or" or a comma."""
    or_like = clause[i].text in ("or", "nor", "/")
    begins = i + 1 < len(clause) and clause[i + 1].words[0] in ("the", "this", "these")
    listed = any(item.text in ("or", "nor", "/") for item in clause[i + 1 :])
    ahead: list[Item] = []
    for item in clause[i + 1 :]:
        if item.has("joins", "comma") and (ahead or not item.has("joins")):
            break
        if not item.has("joins"):
            ahead.append(item)
    if not now.denied and (now.unsure or now.aside):
        return _after_doubt(ahead, now, or_like, clause[i].has("comma"), listed)
    if not now.denied or or_like:
        return now
    if clause[i].has("comma") and begins and not listed:
        return Scope()  # "without a pneumothorax, the chest tube was removed"
    has_noun = any(is_noun(item) for item in ahead)
    if any(item.has("structure") for item in ahead) and not has_noun:
        abnormal = any("abnormal" in item.kinds.get("state", ()) for item in clause[i + 1 :])
        return now if abnormal else Scope()
    if has_noun and any(item.has("affirmed", "verbs") for item in ahead) and not listed:
        # "No effusion, a nodule is seen" starts anew; "no effusion and nodule is seen" does not.
        return Scope() if clause[i].has("comma") else now
    first = next((item for item in ahead if item.kinds), None)
    if clause[i].has("comma") and not listed and first is not None and is_modifier(first):
        return Scope() if has_noun and first.has("severity", "change") else now
    return now


def _after_doubt(
    ahead: Sequence[Item], now: Scope, or_like: bool, comma: bool, listed: bool
) -> Scope:
    """A doubt holds for a list, not for what has a verb of its own."""
    subject = next(
        (k for k, item in enumerate(ahead) if is_noun(item) or item.has("structure")), None
    )
    if subject is None or or_like:
        return now
    verbs = ("change",) if now.aside else ("verbs",)  # "correlation for edema and pain is advised"
    if any(item.has("affirmed", "state", *verbs) for item in ahead[subject + 1 :]):
        return Scope()
    if not now.unsure:
        return now
    first = next(item for item in ahead if item.kinds)
    severe = comma and not listed and first.has("severity", "change") and is_modifier(first)
    stable = severe and "stable" in first.kinds.get("change", ())
    if not now.reach or not is_noun(ahead[subject]) or stable or (severe and now.reach != "list"):
        return Scope(aside=now.aside)
    return now


def _subjects(clause: Sequence[Item], i: int) -> list[int]:
    """Findings that a normal state is said of: "vascular engorgement is within normal limits"."""
    if not (i and clause[i - 1].has("verbs")):
        return []
    findings = []
    for j in range(i - 2, -1, -1):
        if is_noun(clause[j]):
            findings.append(j)
        elif clause[j].kinds and not is_modifier(clause[j]):
            break
    return findings


def _neighbours(clause: Sequence[Item], i: int) -> list[int]:
    """The findings directly before and behind an "or", where only modifiers stand between."""
    neighbours = []
    for way in (range(i - 1, -1, -1), range(i + 1, len(clause))):
        for j in way:
            if is_noun(clause[j]):
                neighbours.append(j)
                break
            if clause[j].text == "with" or (
                clause[j].has("comma", "joins", "verbs", "structure") and not clause[j].claimed
            ):
                break
    return neighbours


def _sided(where: Sequence[Place], scope: Scope) -> list[Place]:
    """Both sides are two places; denied on both sides is denied."""
    sided: list[Place] = []
    for place in where:
        if place.side != "both":
            sided.append(place)
        elif scope.denied or place.change == "resolved":
            sided.append(replace(place, side=""))
        else:
            sided += [replace(place, side="left"), replace(place, side="right")]
    return sided


def _claim(finding: str, scope: Scope, place: Place) -> Claim:
    absent = scope.denied or place.change == "resolved"
    change = place.change
    if absent and change not in ("new", "resolved"):
        change = ""
    return Claim(
        finding,
        "absent" if absent else "present",
        "uncertain" if scope.unsure else "certain",
        place.side,
        place.zone,
        place.severity,
        change,
    )


def _only_a_place(clause: Sequence[Item], i: int) -> bool:
    """Whether a structure says where a finding before it is: "an opacity in the lung"."""
    before = [item for item in clause[:i] if item.kinds and not is_modifier(item)]
    return bool(before and before[-1].has("prepositions") and any(is_noun(item) for item in before))


def _structures_ahead(clause: Sequence[Item], i: int) -> list[int]:
    """Structures that follow a state directly: "normal heart size and mediastinal contours"."""
    structures: list[int] = []
    for j in range(i + 1, len(clause)):
        item = clause[j]
        if item.has("structure"):
            if item.has("state") and structures:
                break
            structures.append(j)
        elif item.has("joins", "comma"):
            following = clause[j + 1] if j + 1 < len(clause) else None
            if not structures and not (following is not None and following.has("state")):
                break
        elif (item.has("state") or item.text == "of") and not structures:
            continue  # "enlarged and tortuous aorta", "normal size of the heart"
        elif item.kinds and not is_modifier(item):
            # "normal heart and the lungs are clear": what has a state of its own is not ahead
            if item.has("verbs", "state") and len(structures) > 1:
                structures.pop()
            break
    return structures


def _apart(clause: Sequence[Item], structure: int, state: int) -> bool:
    """Whether a comma or "and" stands directly before a state, behind another structure."""
    between = [
        item
        for item in clause[structure + 1 : state]
        if item.text == "with" or (item.kinds and not is_modifier(item))
    ]
    return bool(between) and (
        between[-1].has("joins", "comma") or between[-1].text in ("with", "show", "demonstrate")
    )


def _side_of(clause: Sequence[Item], at: int) -> str:
    sides = clause[at].kinds.get("side")
    if sides:
        return sides[0]
    if at and clause[at - 1].has("side") and not clause[at - 1].claimed:
        return clause[at - 1].kinds["side"][0]
    return ""

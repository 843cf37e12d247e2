"""Which side, zone, severity and change belong to which finding of a clause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from medclip_debias.data.text.claims.scan import Item

MODIFIERS = ("side", "zone", "severity", "change")
BREAKS = (
    *("negation_before", "not_a_negation", "uncertainty_before", "uncertainty_here"),
    *("uncertainty_list", "set_aside", "ends", "exception", "stop", "alternative"),
)
_PLAIN_BEFORE = 3
"""Words unknown to the lexicon between a modifier and its noun ("left focal patchy")."""
_PLAIN_AFTER = 6


@dataclass(frozen=True, slots=True)
class Place:
    """A side (``left``, ``right``, ``both``), zone, severity and change; empty where not said."""

    side: str = ""
    zone: str = ""
    severity: str = ""
    change: str = ""

    def filled(self, other: Place) -> Place:
        """This place, with what it leaves open taken from another."""
        return Place(
            self.side or other.side,
            self.zone or other.zone,
            self.severity or other.severity,
            self.change or other.change,
        )


def is_noun(item: Item) -> bool:
    """Whether an item names a finding, alone or with others."""
    return item.has("finding", "statement")


def is_modifier(item: Item) -> bool:
    """Whether an item can only be a modifier or is free to be one."""
    only_part = item.has("structure") and not item.has("zone")
    return item.has(*MODIFIERS) and not (item.has("finding") or only_part or item.claimed)


def places(clause: Sequence[Item], carried: Place = Place()) -> dict[int, list[Place]]:
    """The places of every finding of a clause, by its index."""
    nouns = [i for i, item in enumerate(clause) if is_noun(item)]
    before = {i: list(_prefix(clause, i)) for i in nouns}
    for indices in before.values():
        for i in indices:
            clause[i].claimed = True
    places_of: dict[int, list[Place]] = {}
    for number, noun in enumerate(nouns):
        end = nouns[number + 1] if number + 1 < len(nouns) else len(clause)
        after = list(_suffix(clause, noun, end))
        for i in after:
            clause[i].claimed = True
        inside = Place(
            side=clause[noun].kinds.get("side", ("",))[0],
            zone=clause[noun].kinds.get("zone", ("",))[0],
        )
        first, last = _groups(clause, before[noun]), _groups(clause, after)
        if inside != Place():
            first = [inside.filled(place) for place in first] or [inside]
        places_of[noun] = _merged(first, last)
        if any(place.change == "resolved" for place in last):
            places_of[noun] = [replace(place, change="resolved") for place in places_of[noun]]
    _distribute(clause, nouns, places_of)
    for i, item in enumerate(clause):
        if item.claimed and "resolved" in item.kinds.get("change", ()):
            for j in set(list_before(clause, i)) & set(places_of):
                places_of[j] = [replace(place, change="resolved") for place in places_of[j]]
    if nouns and carried != Place():
        first_places = places_of[nouns[0]]
        if all(not (p.side or p.zone) for p in first_places):
            located = Place(carried.side, carried.zone)
            places_of[nouns[0]] = [p.filled(located) for p in first_places]
    if nouns:
        _lead(clause, nouns[0], places_of)
    return places_of


_PLURAL = ("are", "have", "were", "remain", "none")


def list_before(clause: Sequence[Item], cue: int) -> list[int]:
    """The findings and states that a cue behind them speaks of, the nearest first.

    A list goes on through "and", "or" and its commas, and ends where what stands before has a
    verb of its own ("there is an effusion and pneumonia cannot be excluded") or where a comma
    divides two statements ("small effusion, pneumothorax is not seen").
    """
    listed: list[int] = []
    joined = clause[cue].words[0] in _PLURAL
    for i in range(cue - 1, -1, -1):
        item = clause[i]
        # "The nodule seen on the prior study is not seen": the first "seen" says which nodule.
        which = item.has("affirmed") and len(item.words) == 1 and not listed
        if item.has("affirmed", "negation_after", "uncertainty_after") and not which:
            break
        if is_noun(item) or item.has("state"):
            listed.append(i)
        elif item.has("joins", "comma") and listed:
            start = _part_start(clause, i)
            two = item.has("joins") and i > 0 and clause[i - 1].has("comma") and start == 0
            if _has_predicate(clause[start:i]) or two or not (joined or item.has("joins")):
                break
            joined = True
    return listed


def _part_start(clause: Sequence[Item], end: int) -> int:
    """Where the part of a list that ends at a join or comma begins."""
    while end > 0 and clause[end - 1].has("joins", "comma"):
        end -= 1
    while end > 0 and not clause[end - 1].has("joins", "comma"):
        end -= 1
    return end


def _has_predicate(part: Sequence[Item]) -> bool:
    """Whether a part says something by itself: "there is an effusion", "the heart is enlarged"."""
    if part and part[0].text.startswith("there"):
        return True
    nouns = [k for k, item in enumerate(part) if is_noun(item) or item.has("structure")]
    return bool(nouns) and any(i.has("verbs", "affirmed", "state") for i in part[nouns[0] + 1 :])


def trailing_place(clause: Sequence[Item]) -> Place:
    """Where a clause without a finding says that the next one is ("In the left base, there is")."""
    if any(is_noun(item) or item.has("state", *BREAKS) for item in clause[1:]):
        return Place()
    groups = _groups(clause, [i for i, item in enumerate(clause) if item.has("side", "zone")])
    return groups[0] if len(groups) == 1 else Place()


def severity_before(clause: Sequence[Item], at: int) -> str:
    """The severity that stands directly before a state ("mildly enlarged")."""
    for i in range(at - 1, max(at - 3, -1), -1):
        item = clause[i]
        if item.has("severity") and not item.claimed:
            item.claimed = True
            return item.kinds["severity"][0]
        if item.kinds and not item.has("verbs", "change"):
            return ""
    return ""


def _prefix(clause: Sequence[Item], noun: int) -> Iterator[int]:
    """Yield the modifiers before a noun, from the nearest on."""
    plain, last = 0, noun
    for i in range(noun - 1, -1, -1):
        item = clause[i]
        if item.text == "with":
            return
        if is_modifier(item):
            # "slightly increased" is a change, not a slight finding
            if not (item.has("severity") and _graded(clause, i)):
                yield i
            plain, last = 0, i
        elif item.has("joins", "comma"):
            adjoins = last == i + 1 and i > 0 and is_modifier(clause[i - 1])
            if not (adjoins and _free(clause, i - 1)):
                return
        elif item.has("prepositions"):
            if i == 0 or not clause[i - 1].has("severity", "change"):
                return
        elif item.has("verbs"):
            if i == 0 or not clause[i - 1].has("change"):
                return
        elif item.has("uncertainty_before", "uncertainty_here", "uncertainty_list", "otherwise"):
            pass
        elif item.has("structure") and i > 0 and clause[i - 1].has("side") and last == i + 1:
            pass  # "right lung granuloma"
        elif item.kinds and (not item.has("state") or item.has(*BREAKS, "structure")):
            return
        else:
            plain += 1
            if plain > _PLAIN_BEFORE:
                return


def _free(clause: Sequence[Item], i: int) -> bool:
    """Whether the modifiers that end at ``i`` belong to no earlier finding ("on the left and")."""
    while i >= 0 and (is_modifier(clause[i]) or not clause[i].kinds):
        i -= 1
    bound = i >= 0 and (clause[i].has("prepositions") or is_noun(clause[i]))
    return not (bound and any(map(is_noun, clause[: i + 1])))


def _graded(clause: Sequence[Item], i: int) -> bool:
    """Whether a severity grades a change ("slight increase in")."""
    return any(
        after.kinds.get("change", ("",))[0] in ("increased", "decreased", "resolved")
        and not after.has("side", "zone", "finding")
        for after in clause[i + 1 : i + 2]
    )


def _suffix(clause: Sequence[Item], noun: int, end: int) -> Iterator[int]:
    """Yield the free modifiers behind a noun that belong to it."""
    plain, last_kind = 0, ""
    for i in range(noun + 1, end):
        item = clause[i]
        if item.has(*BREAKS, "explains") or item.text in ("with", "without"):
            return
        if is_modifier(item):
            if item.has("severity") and not item.has("side", "zone"):
                if last_kind in ("verbs", "comma") and not _graded(clause, i):
                    yield i
            else:
                yield i
            plain = 0
        elif item.has("structure") and last_kind != "prepositions":
            return
        elif item.has("joins", "comma"):
            following = clause[i + 1] if i + 1 < end else None
            if following is not None and following.has("verbs") and i + 2 < end:
                following = clause[i + 2]  # "is present and appears increased"
            graded = following is not None and following.has("severity") and _graded(clause, i + 1)
            if following is None or not (
                is_modifier(following) or graded or following.has("prepositions", "affirmed")
            ):
                return
        else:
            plain += not item.kinds
            if plain > _PLAIN_AFTER:
                return
        kinds = ("affirmed", "verbs", "comma", "prepositions")
        last_kind = next((kind for kind in kinds if item.has(kind)), last_kind)


def _groups(clause: Sequence[Item], indices: Sequence[int]) -> list[Place]:
    """Read modifiers as places: "left lower and right upper" is two, "left lower lobe" is one."""
    groups: list[Place] = []
    last = -1
    for i in sorted(indices):
        place = Place(**{kind: clause[i].kinds.get(kind, ("",))[0] for kind in MODIFIERS})
        joined = last >= 0 and any(item.has("joins", "comma") for item in clause[last + 1 : i])
        clash = groups and (
            (place.side and groups[-1].side and place.side != groups[-1].side)
            or (place.zone and groups[-1].zone and place.zone != groups[-1].zone)
        )
        if groups and not (clash or joined):
            groups[-1] = groups[-1].filled(place)
        else:
            groups.append(place)
        last = i
    located = [g for g in groups if g.side or g.zone]
    for g in groups:  # "small, stable left": what has no side or zone is place of all the others
        if not (g.side or g.zone):
            located = [place.filled(g) for place in located] or [g]
    groups = located
    for n in range(1, len(groups)):  # "left upper and lower lobe"
        if not groups[n].side and groups[n].zone:
            groups[n] = replace(groups[n], side=groups[n - 1].side)
    for n in range(len(groups) - 2, -1, -1):  # "left and right lower lobe"
        if not groups[n].zone and groups[n].side:
            groups[n] = replace(groups[n], zone=groups[n + 1].zone)
    changes = [g.change for g in groups if g.change]
    change = "resolved" if "resolved" in changes else next(iter(changes), "")
    return [replace(g, change=g.change or change) for g in groups]


def _merged(first: list[Place], last: list[Place]) -> list[Place]:
    if not (first and last):
        return first or last or [Place()]
    if len(last) == 1:
        return [place.filled(last[0]) for place in first]
    if len(first) == 1:
        return [place.filled(first[0]) for place in last]
    return first


def _distribute(
    clause: Sequence[Item], nouns: Sequence[int], places_of: dict[int, list[Place]]
) -> None:
    """What is bilateral or unchanged is so for all that "and" joins, where nothing else is said."""
    for a, b in pairwise(nouns):
        between = [item for item in clause[a + 1 : b] if item.kinds]
        if len(between) != 1 or not between[0].has("joins"):
            continue
        for here, there in ((a, b), (b, a)):
            side, zone = places_of[here][0].side, places_of[here][0].zone
            shared = side == "both" or between[0].text == "/"
            if shared and places_of[there] == [Place()]:
                places_of[there] = [Place(side, zone)]
    for b, a in pairwise(nouns[::-1]):
        kinds = [item for item in clause[a + 1 : b] if item.kinds and not item.has(*MODIFIERS)]
        change = places_of[b][0].change
        trailing = any(
            item.has("change") and item.claimed and item.kinds["change"][0] == change
            for item in clause[b + 1 :]
        )
        if (
            change
            and change != "resolved"
            and trailing
            and all(item.has("joins", "comma") for item in kinds)
        ):
            places_of[a] = [replace(p, change=p.change or change) for p in places_of[a]]


def _lead(clause: Sequence[Item], noun: int, places_of: dict[int, list[Place]]) -> None:
    """ "The right base demonstrates an opacity": what leads a clause says where its finding is."""
    if any(p.side or p.zone for p in places_of[noun]):
        return
    lead = clause[:noun]
    if any(item.has(*BREAKS, "comma", "structure", "affirmed") for item in lead):
        return
    free = [i for i, item in enumerate(lead) if is_modifier(item) and item.has("side", "zone")]
    groups = _groups(clause, free)
    if groups:
        for i in free:
            clause[i].claimed = True
        places_of[noun] = _merged(groups, places_of[noun]) if len(groups) == 1 else groups

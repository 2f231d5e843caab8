# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How people tell problems about counting things: persons, tenses, sentences of many forms."""

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from hf_dparallel.demo import word_problems

from .solutions import LARGEST_GIVEN


# Sentences of many forms, with gaps for numbers, persons and things.
WORDINGS = json.loads(Path(__file__).with_name("wordings.json").read_text())
# The fraction of problems and follow-up questions that authors wrote.
WRITTEN_SHARE = 0.6
# A word that the vocabulary does not hold: a person, a thing or a place that the model has never heard of.
UNKNOWN = "qwx"

Changes = Sequence[tuple[str, int]]

NAMES = (
    *word_problems.NAMES,
    *("Anna", "Tom", "Sam", "Emma", "Lisa", "Max", "Paul", "Maria", "Peter", "Lena", "Noah", "Lucy", "Jack", "Sara"),
    "Alex",
    *("my brother", "my sister", "a boy", "a girl", "the teacher", "my mother", "a farmer", "grandma", "the cook"),
)
ITEMS = (
    *word_problems.ITEMS,
    *(
        "cats",
        "dogs",
        "birds",
        "cars",
        "balls",
        "flowers",
        "people",
        "children",
        "students",
        "fish",
        "toys",
        "oranges",
    ),
    *("cookies", "eggs", "stickers", "pencils", "cakes", "sweets", "trees", "boxes", "bottles", "chairs", "dollars"),
    *("euros", "points", "candies", "bananas", "sheep", "photos"),
)
_ADJECTIVES = ("red", "blue", "green", "old", "new", "big", "small", "little", "{unknown}", "{unknown}")
_PLACES = WORDINGS["places"]

# Verbs as (base, third person, past).
VERBS = WORDINGS["verbs"]
# What comes and goes by itself, as (base, past).
_MOVES = WORDINGS["moves"]
_MOVERS = {
    "+": ("{b} more", "{b} more {items}", "another {b}", "{b} {items}", "{b} other {items}"),
    "-": ("{b}", "{b} of them", "{b} {items}", "{b} of the {items}"),
}
_OBJECTS = WORDINGS["objects"]
# Changes by somebody else, or by nobody.
_EVENTS = WORDINGS["events"]
_STARTS = WORDINGS["starts"]
_IMPERSONAL_STARTS = WORDINGS["impersonal_starts"]
_OPENINGS = ("", "", "", "", "then ", "later ", "after that ", "now ", "next , ", "the next day ", "in the evening ")
_JOINTS = (" and {action}", " , then {action}", " and then {action}", " , {action}")
_ENDS = WORDINGS["ends"]
# Of which none tells the sign.
_NEUTRAL_ENDS = [end for end in _ENDS if "left" not in end and "remain" not in end]
_ENDS_OF = WORDINGS["ends_of"]
_ENDS_OF_TWO = WORDINGS["ends_of_two"]
_TWO = WORDINGS["two"]
_ONE_HEAP = WORDINGS["one_heap"]
_THREE = WORDINGS["three"]
_PARTS = (
    "{subject} {lost} {b} of the {a} {items} .", "{b} of {a} {items} {went} .", "of {a} {items} {b} {went} .",
    "{subject} {lost} {b} of {subject} {a} {items} .", "{subject} {lost} {b} of {unknown} {a} {adjective} {items} .",
)  # fmt: skip
_WANTS = WORDINGS["wants"]
_ENDS_OF_HEAP = WORDINGS["ends_of_heap"]
_IFS = WORDINGS["ifs"]
_FOLLOW_UPS = WORDINGS["follow_ups"]
_SHORT_FOLLOW_UPS = WORDINGS["short_follow_ups"]
_SUMS = WORDINGS["sums"]
_SIGNED_SUMS = WORDINGS["signed_sums"]
# Said without meaning anything for the count.
_FILLERS = (UNKNOWN, UNKNOWN, UNKNOWN, "just", "also", "my", "the", "very", "his", "her", "their", "really", "some")
_PERSONS = ("she", "he", "they")
_OBJECT_FORMS = {"she": "her", "he": "him", "they": "them", "I": "me", "we": "us", "you": "you"}
_UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def _read_questions() -> dict[str, list[str]]:
    """Returns questions by authors who saw nothing else, by solution, with a space between words and marks.

    Keys: the signs of a problem's changes, `"&+"` and `"&-"` for questions that follow another one, and `"?"` where
    no sum answers. The gaps `{x}` and `{y}` are for numbers that do not matter.
    """
    questions = defaultdict(list)
    for line in Path(__file__).with_name("questions.txt").read_text().splitlines():
        kind, text = line.split("|", 1)
        questions[kind].append(" ".join(re.findall(r"{\w+}|\w+|[^\w\s]", text)))
    return dict(questions)


QUESTIONS = _read_questions()


def words_of(texts: Iterable[str]) -> set[str]:
    """Returns all words but those with a gap."""
    return {word for text in texts for word in text.split() if "{" not in word}


def wording_templates() -> list[str]:
    """Returns all parts of questions, with gaps in braces."""
    texts = [*_STARTS, *_IMPERSONAL_STARTS, *_OPENINGS, *_JOINTS, *_PLACES, *_ENDS, *_FOLLOW_UPS, *_ADJECTIVES]
    texts += [
        *_TWO,
        *_ONE_HEAP,
        *_THREE,
        *_PARTS,
        *_WANTS,
        *_ENDS_OF_HEAP,
        *_IFS,
        *_SIGNED_SUMS,
        *_UNITS,
        *_TENS,
        *_PERSONS,
        "started had",
    ]
    texts += [*_OBJECT_FORMS, *_OBJECT_FORMS.values(), "have has had do does did", *NAMES, *ITEMS, *_FILLERS]
    texts += [text for asked in QUESTIONS.values() for text in asked]
    for sign in "+-":
        texts += [form for verb in (*VERBS[sign], *_MOVES[sign]) for form in verb]
        for options in (_OBJECTS, _EVENTS, _MOVERS, _ENDS_OF, _ENDS_OF_TWO, _SHORT_FOLLOW_UPS, _SUMS):
            texts += options[sign]
    return texts


class Teller:
    """Tells one problem, and goes on with it in follow-up questions: who counts what, in which person and tense."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.name, self.other = (UNKNOWN if rng.random() < 0.25 else name for name in rng.sample(NAMES, 2))
        self.items = UNKNOWN if rng.random() < 0.3 else rng.choice(ITEMS)
        if rng.random() < 0.07:
            self.items = f"{UNKNOWN} {self.items}"
        self.subject = self.name if rng.random() < 0.7 else rng.choice(("I", "we", "they", "you", *_PERSONS))
        self.pronoun = self.subject if self.subject != self.name else rng.choice((self.name, *_PERSONS))
        self.past = rng.random() < 0.35
        # Who acts in the last clause, where there is somebody to whom a further action may be joined.
        self.actor: str | None = None

    def question(self, start: int, changes: Changes) -> str:
        """Writes the problem; once in fifteen without its question, which goes without saying."""
        form = self.rng.random()
        written = QUESTIONS.get("".join(sign for sign, _ in changes))
        if written and self.rng.random() < WRITTEN_SHARE:
            numbers = dict(zip("abcd", (start, *(change for _, change in changes)), strict=False))
            return self._written(self.rng.choice(written), **numbers)
        if len(changes) == 1 and form < 0.25 and (changes[0][0] == "+" or changes[0][1] <= start):
            text = self._two_numbers(start, *changes[0])
        elif 1 <= len(changes) <= 2 and form < 0.45:
            signs, is_list = "".join(sign for sign, _ in changes), self.rng.random() < 0.2
            text = self._three(start, changes) if signs == "++" and is_list else self._one_sentence(start, changes)
        else:
            text = self._story(start, changes)
        return mistyped(text, self.rng)

    def follow_up(self, sign: str, change: int) -> str:
        """Writes one more change."""
        rng = self.rng
        if rng.random() < WRITTEN_SHARE:
            return self._written(rng.choice(QUESTIONS[f"&{sign}"]), b=change)
        if rng.random() < 0.2:
            return mistyped(rng.choice(_SHORT_FOLLOW_UPS[sign]).format(b=change), rng)
        text = rng.choice(_FOLLOW_UPS).format(step=self._clause(sign, change), end=self._end(sign))
        return mistyped(text.replace("? if", "if"), rng)

    def unclear(self, start: int, change: int) -> str:
        """Writes a change that may add or take away."""
        verb, end = self.rng.choice((UNKNOWN, f"{UNKNOWN} {UNKNOWN}")), self._fill(self.rng.choice(_NEUTRAL_ENDS))
        return as_typed(f"{self._start(start)} . {self.pronoun} {verb} {change} . {end}", self.rng)

    def sum(self, start: int, changes: Changes) -> str:
        """Writes bare numbers."""
        (sign, change), *more = changes
        texts = _SIGNED_SUMS if more or self.rng.random() < 0.5 else _SUMS[sign]
        text = self.rng.choice(texts)
        is_spoken = self.rng.random() < 0.4
        for sign, change in more:
            text = text.replace("{b}", f"{{b}} {sign} {change}")
        text = text.format(a=start, sign=changes[0][0], b=changes[0][1])
        return mistyped(text.replace("+", "plus").replace("-", "minus") if is_spoken else text, self.rng)

    def _written(self, text: str, **numbers: int) -> str:
        """Fills an author's question, where only what is counted may be an unknown word: others may decide."""
        irrelevant = {gap: self.rng.randint(1, LARGEST_GIVEN) for gap in "xy"}
        counted = set(re.findall(r"{[a-d]} (\w+s)\b", text)) - SIGN_WORDS if self.rng.random() < 0.4 else ()
        words = [UNKNOWN if word in counted else word for word in text.split()]
        return mistyped(self._fill(" ".join(words), **numbers, **irrelevant), self.rng, text.lower().split())

    def _two_numbers(self, start: int, sign: str, change: int) -> str:
        """Writes what two have together, or one has more than the other."""
        rng = self.rng
        if sign == "-" and rng.random() < 0.5:
            text = rng.choice((*_PARTS, *_WANTS))
            text = text if "?" in text else f"{text} {rng.choice(_ENDS_OF['-'])}"
            return self._fill(text, a=start, b=change)
        heap = sign == "+" and rng.random() < 0.5
        text = f"{rng.choice(_ONE_HEAP if heap else _TWO)} {rng.choice(_ENDS_OF_HEAP if heap else _ENDS_OF_TWO[sign])}"
        return self._fill(text, a=start, b=change)

    def _three(self, start: int, changes: Changes) -> str:
        end = self.rng.choice(_ENDS_OF_HEAP)
        return self._fill(f"{self.rng.choice(_THREE)} {end}", a=start, b=changes[0][1], c=changes[1][1])

    def _one_sentence(self, start: int, changes: Changes) -> str:
        clauses = [self._clause(sign, change) for sign, change in changes]
        start_text = self._start(start)
        end, form = self._end(changes[-1][0]), self.rng.choice(_IFS)
        text = form.format(start=start_text, changes=" and ".join(clauses), end=end)
        return text.replace("? if", "if")

    def _story(self, start: int, changes: Changes) -> str:
        rng = self.rng
        sentences = [self._start(start)]
        for sign, change in changes:
            if self.actor and rng.random() < 0.25:
                sentences[-1] += rng.choice(_JOINTS).format(action=self._action(sign, change, self.actor))
            else:
                sentences.append(rng.choice(_OPENINGS) + self._clause(sign, change))
        text = " . ".join(sentence[0].upper() + sentence[1:] for sentence in sentences) + " ."
        if rng.random() < 0.93:
            end = self._end(changes[-1][0] if len({sign for sign, _ in changes}) == 1 else None)
            text += f" {end[0].upper()}{end[1:]}"
        return text

    def _start(self, start: int) -> str:
        personal = self.rng.random() < 0.7
        self.actor = self.subject if personal else None
        return self._fill(self.rng.choice(_STARTS if personal else _IMPERSONAL_STARTS), a=start)

    def _end(self, sign: str | None) -> str:
        ends = _ENDS_OF[sign] if sign and self.rng.random() < 0.5 else _ENDS
        return self._fill(self.rng.choice(ends))

    def _clause(self, sign: str, change: int) -> str:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.12:
            self.actor = None
            return self._fill(rng.choice(_EVENTS[sign]), b=change)
        if kind < 0.35:
            self.actor = None
            move = rng.choice(_MOVES[sign])[self.past]
            place = f" {rng.choice(_PLACES)}" if rng.random() < 0.1 else ""
            return self._fill(f"{rng.choice(_MOVERS[sign])} {move}{place}", b=change)
        self.actor = rng.choice((self.subject, self.pronoun))
        return f"{self.actor} {self._action(sign, change, self.actor)}"

    def _action(self, sign: str, change: int, actor: str) -> str:
        rng = self.rng
        verb, text = self._verb(rng.choice(VERBS[sign]), actor), rng.choice(_OBJECTS[sign])
        # What is said of the number tells more or less where the verb is not known.
        if rng.random() < 0.06 and ("of the" in text or "more" in text and sign == "+" or "another" in text):
            verb = UNKNOWN
        action = f"{verb} {self._fill(text, b=change)}"
        return f"{action} {self._fill(rng.choice(_PLACES))}" if rng.random() < 0.1 else action

    def _verb(self, forms: tuple[str, str, str], actor: str) -> str:
        base, third, past = forms
        return past if self.past else base if actor in ("I", "we", "they", "you") else third

    def _fill(self, text: str, **numbers: int) -> str:
        rng = self.rng
        text = text.replace("{place}", rng.choice(_PLACES)).replace("{adjective}", rng.choice(_ADJECTIVES), 1)
        return text.replace("{adjective}", rng.choice(_ADJECTIVES)).format(
            name=self.name,
            other=self.other,
            items=self.items,
            unknown=UNKNOWN,
            subject=self.subject,
            object=_OBJECT_FORMS.get(self.pronoun, self.pronoun),
            do=self._verb(("do", "does", "did"), self.subject),
            have=self._verb(("have", "has", "had"), self.subject),
            got=self._verb(rng.choice(VERBS["+"]), self.subject),
            found=rng.choice(VERBS["+"])[2],
            lost=rng.choice(VERBS["-"])[2].removesuffix(" away"),
            went=rng.choice(_MOVES["-"])[1],
            pronoun=self.pronoun,
            **numbers,
        )


def in_words(number: int) -> str:
    """Writes 42 as "forty - two"."""
    if number < 20:
        return _UNITS[number]
    return _TENS[number // 10 - 2] + (f" - {_UNITS[number % 10]}" if number % 10 else "")


def mistyped(text: str, rng: random.Random, vital: Iterable[str] = ()) -> str:
    """Makes, now and then, words of a problem unknown, puts others before them, and writes numbers as words.

    Words that are vital, or may tell the sign, stay.
    """
    share = rng.choice((0.0, 0.0, 0.06, 0.15))
    if share:
        words, vital = text.split(), SIGN_WORDS.union(vital)
        for index, word in enumerate(words):
            if word.isalpha() and rng.random() < share:
                is_vital = word.lower() in vital or rng.random() < 0.4
                words[index] = f"{rng.choice(_FILLERS)} {word}" if is_vital else UNKNOWN
        text = " ".join(words)
    if rng.random() < 0.1:
        hyphen = rng.choice((" - ", " - ", " "))
        text = re.sub(r"\b\d\d?\b", lambda number: in_words(int(number[0])).replace(" - ", hyphen), text)
        text = text.replace("twelve ", "a dozen ") if rng.random() < 0.5 else text
    return as_typed(text, rng)


def as_typed(text: str, rng: random.Random) -> str:
    """Begins with a capital; once in eight all capitals are forgotten, once in eight the mark at the end."""
    text = text[0].upper() + text[1:]
    if rng.random() < 0.12:
        text = text.lower()
    return text.rstrip(" .?!") or text if rng.random() < 0.12 else text


# Words that decide an answer. Any other word of a question may be unknown, or mistyped.
SIGN_WORDS = words_of(
    (
        "plus minus add sum subtract take less than from more fewer away back out off on up of to and but difference",
        "left total all together altogether another = + - . , ? if",
        *(form for sign in "+-" for verb in (*VERBS[sign], *_MOVES[sign]) for form in verb),
        *(text for texts in _EVENTS.values() for text in texts),
    )
)

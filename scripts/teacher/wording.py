# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How people tell problems about counting things: persons, tenses, sentences of many forms."""

import random
from collections.abc import Iterable

from hf_dparallel.demo import word_problems
from hf_dparallel.demo.word_problems import ITEMS, NAMES


# A word that the vocabulary does not hold: a person, a thing or a place that the model has never heard of.
UNKNOWN = "qwx"

# Verbs as (base, third person, past).
VERBS = {
    "+": (
        ("find", "finds", "found"),
        ("buy", "buys", "bought"),
        ("get", "gets", "got"),
        ("win", "wins", "won"),
        ("collect", "collects", "collected"),
        ("receive", "receives", "received"),
        ("make", "makes", "made"),
        ("add", "adds", "added"),
    ),
    "-": (
        ("lose", "loses", "lost"),
        ("sell", "sells", "sold"),
        ("use", "uses", "used"),
        ("eat", "eats", "ate"),
        ("break", "breaks", "broke"),
        ("drop", "drops", "dropped"),
        ("give away", "gives away", "gave away"),
        ("throw away", "throws away", "threw away"),
    ),
}
_HAVE = ("have", "has", "had")
_OBJECTS = {
    "+": ("{b} more", "{b} {items}", "{b} more {items}", "another {b}", "{b}"),
    "-": ("{b} of them", "{b} {items}", "{b}", "{b} more", "{b} of the {items}"),
}
# Changes by somebody else, or by nobody.
_EVENTS = {
    "+": ("{b} more come", "a friend brings {b} {items}", "a friend gives {object} {b} more", "{b} {items} are added"),
    "-": ("{b} of them get lost", "a friend takes {b} of them", "somebody steals {b} {items}", "{b} are taken away"),
}
_STARTS = (
    "{subject} {have} {a} {items}",
    "{subject} {have} {a} {adjective} {items}",
    "in the morning {subject} {have} {a} {items}",
)
_IMPERSONAL_STARTS = (
    "there are {a} {items} in the bag of {name}",
    "there are {a} {items} on the table",
    "a box holds {a} {items}",
    "{name} starts with {a} {items}",
)
_OPENINGS = ("", "", "", "then ", "later ", "after that ", "now ", "next , ", "the next day ", "in the evening ")
_JOINTS = (" and {action}", " , then {action}", " and then {action}")
_PLACES = ("at home", "at school", "in the garden", "at the market", "on the way home", "at the {unknown}")
_ENDS = (
    "How many {items} {do} {subject} have now ?",
    "How many {items} {do} {subject} have ?",
    "How many {items} {do} {subject} have in the end ?",
    "How many {do} {subject} have left ?",
    "How many {items} are left ?",
    "How many are there now ?",
    "How many {items} are there in the end ?",
    "What is the number of {items} now ?",
    "How many now ?",
)
_FOLLOW_UPS = (
    "And if {step} ?",
    "What if {step} ?",
    "And then {step} ?",
    "And if {step} , how many are left ?",
    "Now {step} . How many now ?",
    "Then {step} .",
    "And when {step} ?",
)
_ADJECTIVES = ("red", "blue", "old", "new", "big", "small", "{unknown}")
_PERSONS = ("she", "he", "they")
_OBJECT_FORMS = {"she": "her", "he": "him", "they": "them", "I": "me", "we": "us"}


def vocabulary() -> list[str]:
    """All words of the word problems that come with the package, sorted, the numbers last."""
    templates = [*word_problems.QUESTION_START, *word_problems.QUESTION_OPENING, *word_problems.QUESTION_END]
    templates += [text for texts in word_problems.QUESTION_STEP.values() for text in texts]
    numbers = [str(number) for number in range(word_problems.LARGEST_NUMBER + 1)]
    return _words([*templates, *NAMES, *ITEMS, "+ -", *answer_words()]) + numbers


def answer_words() -> list[str]:
    """All words of their worked answers but the numbers, sorted."""
    weighted = [word_problems.START, word_problems.STEP_OPENING, word_problems.STEP_RESULT, word_problems.END]
    return _words(text for options in [*weighted, *word_problems.STEP_ACTION.values()] for _, text in options)


def _words(texts: Iterable[str]) -> list[str]:
    return sorted({word for text in texts for word in text.split() if not word.startswith("{")})


def wording_templates() -> list[str]:
    """All texts that questions are made of, with gaps in braces."""
    texts = [*_STARTS, *_IMPERSONAL_STARTS, *_OPENINGS, *_JOINTS, *_PLACES, *_ENDS, *_FOLLOW_UPS, *_ADJECTIVES]
    texts += [*_OBJECT_FORMS, *_OBJECT_FORMS.values(), *_HAVE, "do does did", *NAMES, *ITEMS]
    for sign in "+-":
        texts += [*(form for verb in VERBS[sign] for form in verb), *_OBJECTS[sign], *_EVENTS[sign]]
    return texts


class Teller:
    """Tells one problem, and goes on with it in follow-up questions: who counts what, in which person and tense."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.name = UNKNOWN if rng.random() < 0.2 else rng.choice(NAMES)
        self.items = UNKNOWN if rng.random() < 0.25 else rng.choice(ITEMS)
        self.subject = self.name if rng.random() < 0.8 else rng.choice(("I", "we", "they"))
        self.pronoun = self.subject if self.subject != self.name else rng.choice((self.name, *_PERSONS))
        self.past = rng.random() < 0.2
        # Who acts in the last clause, where there is somebody to whom a further action may be joined.
        self.actor: str | None = None

    def question(self, start: int, changes: list[tuple[str, int]]) -> str:
        """The whole problem; once in fifteen without its question, which goes without saying."""
        rng = self.rng
        personal = rng.random() < 0.75
        self.actor = self.subject if personal else None
        sentences = [self._fill(rng.choice(_STARTS if personal else _IMPERSONAL_STARTS), a=start)]
        for sign, change in changes:
            if self.actor and rng.random() < 0.2:
                sentences[-1] += rng.choice(_JOINTS).format(action=self._action(sign, change, self.actor))
            else:
                sentences.append(rng.choice(_OPENINGS) + self._clause(sign, change))
        text = " . ".join(sentence[0].upper() + sentence[1:] for sentence in sentences) + " ."
        if rng.random() < 0.93:
            text += " " + self._fill(rng.choice(_ENDS))
        return as_typed(text, rng)

    def follow_up(self, sign: str, change: int) -> str:
        """One change more."""
        return as_typed(self.rng.choice(_FOLLOW_UPS).format(step=self._clause(sign, change)), self.rng)

    def _clause(self, sign: str, change: int) -> str:
        if self.rng.random() < 0.15:
            self.actor = None
            return self._fill(self.rng.choice(_EVENTS[sign]), b=change)
        self.actor = self.rng.choice((self.subject, self.pronoun))
        return f"{self.actor} {self._action(sign, change, self.actor)}"

    def _action(self, sign: str, change: int, actor: str) -> str:
        verb = self._verb(self.rng.choice(VERBS[sign]), actor)
        action = f"{verb} {self._fill(self.rng.choice(_OBJECTS[sign]), b=change)}"
        return f"{action} {self._fill(self.rng.choice(_PLACES))}" if self.rng.random() < 0.08 else action

    def _verb(self, forms: tuple[str, str, str], actor: str) -> str:
        base, third, past = forms
        return past if self.past else base if actor in ("I", "we", "they") else third

    def _fill(self, text: str, **numbers: int) -> str:
        return text.format(
            name=self.name,
            items=self.items,
            unknown=UNKNOWN,
            subject=self.subject,
            object=_OBJECT_FORMS.get(self.pronoun, self.pronoun),
            do=self._verb(("do", "does", "did"), self.subject),
            have=self._verb(_HAVE, self.subject),
            adjective=self.rng.choice(_ADJECTIVES).format(unknown=UNKNOWN),
            **numbers,
        )


def as_typed(text: str, rng: random.Random) -> str:
    """Begins with a capital; once in twelve all capitals are forgotten, once in twelve the mark at the end."""
    text = text[0].upper() + text[1:]
    if rng.random() < 0.08:
        text = text.lower()
    return text.rstrip(" .?!") or text if rng.random() < 0.08 else text

# Copyright 2026 The hf-dparallel authors. Licensed under the Apache License, Version 2.0.
"""How people tell problems about counting things: persons, tenses, sentences of many forms."""

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from hf_dparallel.demo import word_problems

from .solutions import LARGEST_GIVEN


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
_PLACES = (
    "at home", "at school", "in the garden", "at the market", "on the way home", "at the {unknown}",
    "in the {unknown}", "from the {unknown}", "for {unknown}", "on the table", "to the {unknown}", "today",
    "for lunch", "in a {unknown}",
)  # fmt: skip

# Verbs as (base, third person, past).
VERBS = {
    "+": (
        ("find", "finds", "found"), ("buy", "buys", "bought"), ("get", "gets", "got"), ("win", "wins", "won"),
        ("collect", "collects", "collected"), ("receive", "receives", "received"), ("make", "makes", "made"),
        ("add", "adds", "added"), ("pick", "picks", "picked"), ("bring", "brings", "brought"),
        ("bake", "bakes", "baked"), ("catch", "catches", "caught"), ("draw", "draws", "drew"),
        ("gather", "gathers", "gathered"), ("earn", "earns", "earned"), ("build", "builds", "built"),
        ("plant", "plants", "planted"), ("borrow", "borrows", "borrowed"), ("order", "orders", "ordered"),
        ("grow", "grows", "grew"), ("pick up", "picks up", "picked up"), ("take out", "takes out", "took out"),
        ("save", "saves", "saved"), ("score", "scores", "scored"), ("read", "reads", "read"),
    ),
    "-": (
        ("lose", "loses", "lost"), ("sell", "sells", "sold"), ("use", "uses", "used"), ("eat", "eats", "ate"),
        ("break", "breaks", "broke"), ("drop", "drops", "dropped"), ("give away", "gives away", "gave away"),
        ("throw away", "throws away", "threw away"), ("spend", "spends", "spent"), ("drink", "drinks", "drank"),
        ("donate", "donates", "donated"), ("throw out", "throws out", "threw out"), ("return", "returns", "returned"),
        ("remove", "removes", "removed"), ("send", "sends", "sent"), ("give back", "gives back", "gave back"),
        ("burn", "burns", "burned"), ("give", "gives", "gave"), ("lend", "lends", "lent"), ("pay", "pays", "paid"),
        ("throw back", "throws back", "threw back"), ("hand out", "hands out", "handed out"),
    ),
}  # fmt: skip
# What comes and goes by itself, as (base, past).
_MOVES = {
    "+": (
        ("arrive", "arrived"), ("come", "came"), ("join", "joined"), ("appear", "appeared"), ("get on", "got on"),
        ("come in", "came in"), ("fly in", "flew in"), ("show up", "showed up"), ("enter", "entered"),
        ("are added", "were added"), ("come back", "came back"), ("are delivered", "were delivered"),
        ("hatch", "hatched"), ("follow", "followed"), ("walk in", "walked in"), ("are put in", "were put in"),
    ),
    "-": (
        ("leave", "left"), ("go away", "went away"), ("run away", "ran away"), ("fly away", "flew away"),
        ("get off", "got off"), ("go home", "went home"), ("die", "died"), ("melt", "melted"), ("fall", "fell"),
        ("disappear", "disappeared"), ("are sold", "were sold"), ("are eaten", "were eaten"), ("pop", "popped"),
        ("get lost", "got lost"), ("are stolen", "were stolen"), ("are taken away", "were taken away"),
        ("go out", "went out"), ("are gone", "were gone"), ("drive off", "drove off"), ("are broken", "were broken"),
    ),
}  # fmt: skip
_MOVERS = {
    "+": ("{b} more", "{b} more {items}", "another {b}", "{b} {items}", "{b} other {items}"),
    "-": ("{b}", "{b} of them", "{b} {items}", "{b} of the {items}"),
}
_OBJECTS = {
    "+": (
        "{b} more", "{b} {items}", "{b} more {items}", "another {b}", "{b}", "{b} {adjective} {items}", "{b} others",
    ),
    "-": ("{b} of them", "{b} {items}", "{b}", "{b} more", "{b} of the {items}", "{b} to {other}", "{b} to a friend"),
}  # fmt: skip
# Changes by somebody else, or by nobody.
_EVENTS = {
    "+": (
        "a friend brings {b} {items}", "a friend gives {object} {b} more", "{other} gives {object} {b}",
        "{other} gave {object} {b} {items}", "somebody puts {b} more in",
    ),
    "-": (
        "a friend takes {b} of them", "somebody steals {b} {items}", "{other} takes {b}", "{other} took {b} {items}",
        "a {unknown} eats {b}", "somebody takes {b} out",
    ),
}  # fmt: skip
_STARTS = (
    "{subject} {have} {a} {items}", "{subject} {have} {a} {adjective} {items}", "{subject} {have} {a} {items} {place}",
    "in the morning {subject} {have} {a} {items}", "{subject} {have} {a}", "{subject} {got} {a} {items}",
    "{subject} {got} {a} {items} {place}",
)  # fmt: skip
_IMPERSONAL_STARTS = (
    "there are {a} {items} in the bag of {name}", "there are {a} {items} {place}", "there were {a} {items} {place}",
    "a box holds {a} {items}", "{name} starts with {a} {items}", "{name} started with {a} {items}",
    "a {unknown} has {a} {items}", "the {unknown} has {a} {items} in it", "{a} {items} are {place}",
    "{a} {items} {unknown} {place}", "we count {a} {items}", "there are {a} {adjective} {items}",
)  # fmt: skip
_OPENINGS = ("", "", "", "", "then ", "later ", "after that ", "now ", "next , ", "the next day ", "in the evening ")
_JOINTS = (" and {action}", " , then {action}", " and then {action}", " , {action}")
_ENDS = (
    "how many {items} {do} {subject} have now ?", "how many {items} {do} {subject} have ?", "how many now ?",
    "how many {items} {do} {subject} have in the end ?", "how many {items} are left ?", "how many are there now ?",
    "how many {items} are there in the end ?", "what is the number of {items} now ?", "how many {items} ?",
    "how many {items} are there ?", "how many remain ?", "how many {items} remain ?", "how many are {place} now ?",
    "how many is that ?", "how many {do} {subject} have ?", "how many are there ?", "how many {items} now ?",
)  # fmt: skip
# Of which none tells the sign.
_NEUTRAL_ENDS = [end for end in _ENDS if "left" not in end and "remain" not in end]
_ENDS_OF = {
    "+": (
        "how many in total ?", "how many in all ?", "how many altogether ?", "how many {items} in total ?",
        "how many {items} {do} {subject} have in total ?", "how many {items} {do} {subject} have altogether ?",
        "how many {items} are there in all ?", "what is the total ?", "how many {items} {do} {subject} have in all ?",
        "how many {do} {subject} have all together ?", "how many are there in total now ?",
    ),
    "-": (
        "how many {do} {subject} have left ?", "how many {items} {do} {subject} have left ?", "how many are left ?",
        "how many are still there ?", "how many left ?", "how many {items} {do} {subject} still have ?",
        "what is left ?", "how many {items} are left {place} ?",
    ),
}  # fmt: skip
_ENDS_OF_TWO = {
    "+": (
        "how many {items} do they have together ?", "how many do they have in total ?", "how many together ?",
        "how many {items} do they have altogether ?", "how many {items} in all ?", "how many {items} is that ?",
        "how many {items} are there altogether ?", "how many do they have ?", "what is the total ?",
    ),
    "-": (
        "how many more {items} does {name} have than {other} ?", "how many more does {name} have ?",
        "how many fewer does {other} have ?", "how many fewer {items} does {other} have than {name} ?",
        "how many more {items} does {name} have ?", "what is the difference ?",
    ),
}  # fmt: skip
_TWO = (
    "{name} has {a} {items} and {other} has {b} .", "{name} has {a} {items} . {other} has {b} .",
    "{name} has {a} {items} and {other} has {b} {items} .", "{name} {found} {a} {items} and {other} {found} {b} .",
    "{name} has {a} {items} , {other} has {b} .", "{name} {found} {a} {items} . {other} {found} {b} {items} .",
)  # fmt: skip
_ONE_HEAP = (
    "there are {a} {adjective} {items} and {b} {adjective} {items} .", "{a} {items} and {b} {unknown} .",
    "{subject} {have} {a} {adjective} {items} and {b} {adjective} ones .",
    "{subject} {have} {a} {items} and {b} more .", "{subject} {found} {a} {items} and then {b} more .",
    "{subject} {found} {a} {items} and then {found} {b} .",
    "there are {a} {items} and {b} {unknown} {place} .", "{a} {adjective} {items} and {b} {adjective} {items} .",
)  # fmt: skip
_THREE = (
    "{subject} {found} {a} {items} , {b} {unknown} and {c} {unknown} .",
    "{a} {items} , {b} {unknown} and {c} {items} .",
    "{subject} {found} {a} {items} on {unknown} , {b} on {unknown} and {c} on {unknown} .",
    "there are {a} {items} , {b} {adjective} {items} and {c} {unknown} {place} .", "{a} and {b} and {c} {items} .",
)  # fmt: skip
_PARTS = (
    "{subject} {lost} {b} of the {a} {items} .", "{b} of {a} {items} {went} .", "of {a} {items} {b} {went} .",
    "{subject} {lost} {b} of {subject} {a} {items} .", "{subject} {lost} {b} of {unknown} {a} {adjective} {items} .",
)  # fmt: skip
_WANTS = (
    "{subject} {unknown} {a} {items} and {have} {b} . how many more do {pronoun} need ?",
    "{subject} want {a} {items} but {have} only {b} . how many are missing ?",
    "{subject} wants {a} {items} and {have} {b} . how many more {items} does {pronoun} need ?",
)
_ENDS_OF_HEAP = (
    "how many {items} ?", "how many {items} are there ?", "how many in total ?", "how many in all ?", "how many ?",
    "how many altogether ?", "how many {items} {do} {subject} have ?", "how many together ?", "how many is that ?",
    "how many are there in all ?", "how many are there together ?",
)  # fmt: skip
_IFS = (
    "if {start} and {changes} , {end}", "{end} if {start} and {changes} ?", "suppose {start} . {changes} . {end}",
    "{start} . if {changes} , {end}", "{start} and {changes} . {end}", "{start} , {changes} , {end}",
    "when {start} and {changes} , {end}", "{start} but {changes} . {end}",
)  # fmt: skip
_FOLLOW_UPS = (
    "and if {step} ?", "what if {step} ?", "and then {step} ?", "and if {step} , {end}", "now {step} . {end}",
    "then {step} .", "and when {step} ?", "{step} . {end}", "{step} .", "ok , {step} .", "and now {step} . {end}",
    "if {step} , {end}", "after that {step} . {end}", "so {step} . what now ?", "and after {step} ?",
    "{end} if {step} ?", "but then {step} . {end}", "suppose {step} . {end}", "{step} , {end}", "later {step} . {end}",
)  # fmt: skip
_SHORT_FOLLOW_UPS = {
    "+": ("and {b} more ?", "plus {b} ?", "add {b} .", "and plus {b} ?", "{b} more .", "now add {b} more .", "+ {b}"),
    "-": (
        "and {b} less ?", "minus {b} ?", "take away {b} .", "and minus {b} ?", "now remove {b} .", "- {b}",
        "take {b} away .", "subtract {b} .",
    ),
}  # fmt: skip
_SUMS = {
    "+": (
        "what is {a} plus {b} ?", "{a} plus {b}", "add {a} and {b} .", "what is the sum of {a} and {b} ?",
        "{a} and {b} is how much ?", "how much is {a} and {b} ?", "{a} plus {b} is ?", "what do {a} and {b} make ?",
        "how much is {a} plus {b} ?", "add {b} to {a} .", "what ' s {a} plus {b} ?", "{a} and {b} more",
        "{a} plus {b} equals ?", "can you add {a} and {b} ?", "sum {a} and {b}",
    ),
    "-": (
        "what is {a} minus {b} ?", "{a} minus {b}", "take {b} from {a} .", "subtract {b} from {a} .",
        "what is {b} less than {a} ?", "how much is {a} less {b} ?", "{a} minus {b} is ?", "{a} take away {b}",
        "how much is {a} minus {b} ?", "what is {a} take away {b} ?", "what ' s {a} minus {b} ?",
        "take {b} away from {a} .", "{a} minus {b} equals ?", "what is the difference of {a} and {b} ?",
    ),
}  # fmt: skip
_SIGNED_SUMS = (
    "what is {a} {sign} {b} ?", "{a} {sign} {b} = ?", "how much is {a} {sign} {b} ?", "{a} {sign} {b}",
    "please compute {a} {sign} {b} .", "what ' s {a} {sign} {b} ?", "calculate {a} {sign} {b}", "{a} {sign} {b} =",
    "{a} {sign} {b} ?", "can you do {a} {sign} {b} ?", "solve {a} {sign} {b} .", "and {a} {sign} {b} ?",
)  # fmt: skip
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


def vocabulary() -> list[str]:
    """Returns all words of the bundled word problems, sorted, the numbers last."""
    templates = [*word_problems.QUESTION_START, *word_problems.QUESTION_OPENING, *word_problems.QUESTION_END]
    templates += [text for texts in word_problems.QUESTION_STEP.values() for text in texts]
    weighted = [word_problems.START, word_problems.STEP_OPENING, word_problems.STEP_RESULT, word_problems.END]
    templates += [text for options in [*weighted, *word_problems.STEP_ACTION.values()] for _, text in options]
    words = words_of([*templates, *word_problems.NAMES, *word_problems.ITEMS, "+ -"])
    return sorted(words) + [str(number) for number in range(word_problems.LARGEST_NUMBER + 1)]


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

"""The sentences of a text: where one ends and the next begins, in any language. Without torch.

In doubt two sentences stay together: a model that reads both may lose one, but one that reads half a name translates
none. docs/log/translation-search.md has the counts of right and wrong ends on real text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

# The end of a sentence, with closing quotes and brackets; before white space, or in scripts that have none.
# The first look back keeps the time linear in the length of a run of marks.
_END = re.compile(r"""((?<![.!?…।؟۔።])[.!?…।؟۔።]+(?:["'’”“«)\]]|\s?»)*)\s+|([。！？]+["'’”」』）]*)\s*""")
_WORD = re.compile(r"\w+")

_INITIALS = re.compile(r"\w(\.\w)*|[IVX]+")  # "J.", "e.g.", "U.S.", "XIV."
_CLOCK = re.compile(r"[ap]\.?m", re.IGNORECASE)
_NUMBER = re.compile(r"\d\d?")
_CODE = re.compile(r"\d|#|[A-Z]\d")  # what "No." and "Fig." stand before


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NEVER_LAST = _words(
    "abs approx brig bzw ca capt cf col dept dipl dr dra evtl exkl fr gen ggf gov hon hr ing inkl lt melle mio mlle "
    "mme mr mrd mrs ms mt prof rep rev sen sgt sra srta st ste str tel ud uds vgl vs"
)
_BEFORE_NUMBERS = _words(
    "art chap ch fig figs no nos nr p pp sec vol jan feb mar apr jun jul aug sep sept oct okt nov dec dez"
)
SELDOM_LAST = _words("al co corp ex inc jr ltd sr jh")  # last only before a word with which sentences begin

# Words with which sentences begin and names do not.
_FIRST = _words(
    "a an and at but he her his how i if in it its my no on our she so that the their there these they this those we "
    "what when who why yes you your "
    "aber als am auf das dass der die dies diese dieser doch ein eine einen er es ich ihr ihre im ja nein nun sie sein "
    "und warum was wenn wer wie wir "
    "c ce ces cette dans de des elle elles en est et il ils je l la le les leur lui mais ne nous on où pourquoi quand "
    "que qui si son sur un une vous à "
    "el ella ellos las los pero por se su una y"
)

# German writes "12." for "12th" before nouns, which have capitals.
_GERMAN = _words(
    "ab am auf bis das dem den der die diesem dieser ein eine einem einen einer für ihr ihre ihrem ihren ihrer im ist "
    "jenem mit nicht sein seine seinem seinen seiner und vom von wird zum zur über"
)
_AFTER_TIMES = _words(
    "monday tuesday wednesday thursday friday saturday sunday eastern central pacific et est edt pt pst gmt utc"
)


NEAR = 200  # characters before and after a full stop that say what it ends


def sentences(text: str) -> Iterator[tuple[str, str]]:
    """Yield the sentences of `text`, each with the gap that followed it ("" or " ").

    Two stay together after a possible abbreviation, and before a small letter if the text has capitals.
    """
    begin = 0
    has_capitals = text != text.lower()
    last = next((i for i in range(len(text) - 1, -1, -1) if _WORD.match(text, i)), -1)  # of the last word
    for match in _END.finditer(text):
        mark, end = match[match.lastindex or 0], match.end()
        first = max(begin, match.start() - NEAR)
        following = text[end : end + 1]
        if (has_capitals and following.islower()) or last < end:
            continue
        if mark == "." and _is_abbreviation(text[first : match.start()], text[end : end + NEAR]):
            continue
        yield text[begin : match.start() + len(mark)], " " if end > match.start() + len(mark) else ""
        begin = end
    yield text[begin:], ""


def usual_most(lines: Iterable[str]) -> int:
    """Return the largest number of sentences that at least a fiftieth of the lines reach; at least 1."""
    counts = Counter(sum(1 for _ in sentences(line)) for line in lines)
    least = counts.total() / 50
    return max((n for n in counts if sum(count for m, count in counts.items() if m >= n) >= least), default=1)


def _is_abbreviation(before: str, after: str) -> bool:
    """Return True if a full stop between two texts may belong to the last word of the first."""
    if not before or before[-1].isspace():
        return False
    *others, last = before.split()
    last = last.lstrip("([\"'“„‘«")
    word = last.lower()
    if _CLOCK.fullmatch(word):
        return _first_word(after) in _AFTER_TIMES
    if _NUMBER.fullmatch(word):
        return _is_ordinal(before, others, after)
    if word in SELDOM_LAST or (_INITIALS.fullmatch(last) and not last.islower()):
        return not others or _first_word(after) not in _FIRST
    if word in _BEFORE_NUMBERS:
        return bool(_CODE.match(after))
    return word in NEVER_LAST or bool(_INITIALS.fullmatch(last))


def _is_ordinal(before: str, others: Sequence[str], after: str) -> bool:
    """Return True if `before`, the words `others` and a number, continues after the full stop."""
    is_of_list = not others or others[-1][-1] in ":-–/" or not before.rsplit(maxsplit=1)[-1].isdigit()
    return is_of_list or (_first_word(after) not in _FIRST and any(word.lower() in _GERMAN for word in others))


def _first_word(text: str) -> str:
    """Return the first word of `text` in small letters; "" for an initial."""
    match = _WORD.search(text)
    is_initial = match is None or (len(match[0]) == 1 and text[match.end() : match.end() + 1] == ".")
    return "" if match is None or is_initial else match[0].lower()

"""Recognisers of kinds of columns. Each one returns the schema's columns for a table's column with a note, or none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dperm.data.schema.columns import Column
from dperm.data.schema.entries import as_numbers
from dperm.data.schema.moments import ISO, QUARTER, moments
from dperm.data.schema.written_forms import FORMS, piece_of, read_forms
from dperm.data.schema_search.seen import Seen, listed, outwards

if TYPE_CHECKING:
    import pandas as pd

_MOST_CATEGORIES = 50
_FEW_NUMBERS = 10  # different ones, of a category
_STRANGERS = 0.1  # of a column of numbers, which are none; half of it may be, where these are few words
_FEW_STRANGERS = 5
_MOST_STRANGERS = 50  # different ones
_WORDS = 3.0  # on average, in free text
_LETTERS = 40.0
_OFTEN, _SPIKE = 0.01, 5.0  # of the rows, and times the next value: a number so frequent may stand for a missing value
_SCALE = 3  # up to which values are few: a 9 among them stands apart
_PERSONS = 1.05  # rows of each, on average
_FIRST_ROWS, _DATED = 100, 0.9  # of the entries, that are dates of one form
_PAIRED = 0.9  # of the entries, that are two numbers with a mark between them
_SAYS = 0.95  # of the different pairs of numbers, that one of the two numbers tells apart from all others
_ALONE = 0.05  # of the different pairs, that stand in one row
_EVEN = 4.0  # times the mean: rows of the most frequent pair
_ZONE = re.compile(r":\d\d(?:\.\d+)?\s?(?:Z|[+-]\d\d:?\d\d)$")
_PAIR = re.compile(r"\d+(?:\.\d+)?\s*([/|])\s*\d+(?:\.\d+)?")
_PERSON = (
    "patient(?:en)?|kunden?|customer|client|employee|mitarbeiter|member|doctor|physician|nurse|person(?:en)?|teacher|student"
)
#: headers of columns that hold people's names, in some languages; "file name" and the like are asked about, too
_NAMES = re.compile(
    r"(?:^|[^a-z])(?:sur|fore|first|last|given|family|full|maiden|middle|user|nick|vor|nach|familien|"
    rf"(?:{_PERSON})s?)?[_ ]?names?$|^names? of(?:[^a-z]|$)"
)
_MORE_NAMES = re.compile(r"(?:^|[^a-z])(?:nom|prenom|prénom|nombre|apellidos?|nome|cognome|naam|achternaam|voornaam)$")
_WHOLLY = re.compile(rf"(?:{_PERSON})")
_ADDED = re.compile(r"\s*\([^()]*\)$|(?<=\D)[._ -]?\d+$")  # behind a header: a remark, or the number of one that is repeated
_CURRENCIES = re.compile(r"([$€£¥%]|\b(?:EUR|USD|GBP|CHF|JPY|SEK|NOK|DKK|PLN)\b)")
_TRUTHS = [{"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"}, {"ja", "nein"}, {"j", "n"}, {"wahr", "falsch"}]
_TRUTHS += [{"oui", "non"}, {"vrai", "faux"}, {"si", "no"}, {"sí", "no"}, {"on", "off"}]
#: how dates are written, the likelier first: those that have two orders of days and months are told apart or said to be not told
_DATES = (
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%Y/%m/%d",
    "%d.%m.%y",
    "%m/%d/%y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
)
_TIMES = ("", " %H:%M", " %H:%M:%S")
#: of months and quarters, which have no days
_COARSE = ("%Y-%m", "%m/%Y", "%m.%Y", "%b %Y", "%B %Y", "%Y-Q%q", "%Y Q%q", "%YQ%q", "Q%q %Y", "Q%q/%Y", "Q%q-%Y")
_FIRST_YEAR, _LAST_YEAR = 1000, 9998  # of four digits, with a year behind them


def recognised(seen: Seen) -> Sequence[Column]:
    """The schema's columns for what a table's column holds: one, or one for each of several numbers in its entries."""
    return next(found for recognise in _RECOGNISERS if (found := recognise(seen)))


def is_truth(words: Sequence[str]) -> bool:
    """Whether these are two words for yes and no: everybody knows both, whoever holds them."""
    return {word.lower() for word in words} in _TRUTHS


def _nothing(seen: Seen) -> Sequence[Column]:
    if len(seen.counts) > 1:
        return ()
    return (Column(seen.name, "ignore", note=f"only {next(iter(seen.counts))!r}" if seen.counts else "all missing"),)


def _truth(seen: Seen) -> Sequence[Column]:
    if seen.whole and set(seen.numbers.tolist()) == {0.0, 1.0}:  # also as 0.0 and 1.0
        read = {word: str(int(number)) for word, number in zip(seen.words, seen.numbers, strict=True) if word not in ("0", "1")}
        return (Column(seen.name, "category", categories=("0", "1"), read=read, note="yes or no"),)
    if not is_truth(list(seen.counts)):
        return ()
    spelt, read = seen.spelt
    return (Column(seen.name, "category", categories=tuple(sorted(spelt)), read=read, note="yes or no"),)


def _moment(seen: Seen) -> Sequence[Column]:
    if seen.values.dtype.kind == "M":
        fit = [""]
    elif np.isnan(seen.numbers).mean() >= _DATED and seen.words.str.contains(r"\d").mean() >= _DATED:
        fit = _fitting(seen.words, ["", *(form + time for form in _DATES for time in _TIMES), *_COARSE])
    else:
        return ()
    if not fit:
        return _clock(seen)
    read = moments(seen.values, fit[0] or ISO)
    there = read.notna().to_numpy()
    dropped, found = seen.words[~there].unique().tolist(), read[there]
    timed = bool(((found.dt.hour != 0) | (found.dt.minute != 0)).any())
    first, last = found.min(), found.max()
    if first.year < _FIRST_YEAR or last.year > _LAST_YEAR:
        return (Column(seen.name, "ignore", note=f"dates beyond the years {_FIRST_YEAR} to {_LAST_YEAR}"),)
    zoned = getattr(seen.values.dtype, "tz", None) is not None or bool(seen.words.str.contains(_ZONE).any())
    doubt = any((moments(seen.values, form or ISO)[there] != found).any() for form in fit[1:])
    coarse = fit[0] in _COARSE
    what = ("quarters, " if QUARTER in fit[0] else "months, ") if coarse else ""
    note = what + f"{first.date()} to {last.date()}" + (": days or months first? Both fit" if doubt else "")
    note += ", in UTC, as zones are named" if zoned else ""
    note += f"; entries that are none count as missing: {listed(seen.counts, dropped)}" if dropped else ""
    parts = ("year", "month", *(() if coarse else ("weekday",)), *(("hour",) if timed else ()))
    ends = (f"{first.year}-01-01", f"{last.year + 1}-01-01")
    column = Column(seen.name, "date", ends, format=fit[0], parts=parts, note=note)
    return (replace(column, unknown="ignore") if dropped else column,)


def _fitting(words: pd.Series[str], forms: list[str]) -> list[str]:
    """The forms in which as many of these as possible are dates, and nearly all; most forms fail in the first rows."""
    shares = dict.fromkeys(forms, 1.0)
    for rows in (words.iloc[:_FIRST_ROWS], words):
        shares = {form: float(moments(rows, form or ISO).notna().mean()) for form in shares}
        shares = {form: share for form, share in shares.items() if share >= (_DATED if rows is words else _DATED / 2)}
    return [form for form, share in shares.items() if share == max(shares.values())]


def _clock(seen: Seen) -> Sequence[Column]:
    """Recognise times of day, which are stored as hours of one day."""
    for form in _fitting(seen.words, ["%H:%M", "%H:%M:%S"]):
        return (Column(seen.name, "date", ("1900-01-01", "1900-01-02"), format=form, parts=("hour",), note="times of day"),)
    return ()


def _mark(seen: Seen) -> str:
    """The mark between two numbers in nearly all entries; empty where there is none."""
    marks = Counter(found[1] for word in seen.words if (found := _PAIR.fullmatch(word)))
    mark = max(marks, key=lambda each: marks[each], default="")
    return mark if mark and marks[mark] >= _PAIRED * len(seen.words) else ""


def _repeats_as_ids_do(seen: Seen, mark: str) -> bool:
    """Whether pairs of numbers are like ids of persons with several rows: the header is a word for persons, one number says what
    the other is, nearly all have several rows and none has many more than others, or the rows of an entry stand together.
    Measurements are spread over many pairs, and most of them are rare."""
    different = len(seen.counts)
    pieces = (len({piece_of(word, mark, piece) for word in seen.counts}) for piece in (1, 2))
    alone = sum(count == 1 for count in seen.counts.values())
    repeated = len(seen.words) - different  # rows that another row of their entry stands above
    together = int((seen.words.to_numpy()[1:] == seen.words.to_numpy()[:-1]).sum())
    even = alone <= _ALONE * different and max(seen.counts.values()) <= _EVEN * len(seen.words) / different
    persons = bool(_WHOLLY.fullmatch(_plain_header(seen)))
    return persons or max(pieces) >= _SAYS * different or even or together > repeated / 2 > 0


def _pair(seen: Seen) -> Sequence[Column]:
    """Recognise two numbers in each entry, such as a blood pressure of 120/80, but not ids such as 1000/20."""
    mark = _mark(seen)
    if not mark or seen.named_id or seen.all_different or _repeats_as_ids_do(seen, mark):
        return ()
    dropped = [word for word in seen.counts if not ((found := _PAIR.fullmatch(word)) and found[1] == mark)]
    columns: list[Column] = []
    for piece in (1, 2):
        parts = [piece_of(word, mark, piece) if word not in dropped else None for word in seen.words]
        known = _converted([part for part in parts if part is not None])
        note = f"the {'first' if piece == 1 else 'second'} of two numbers with {mark} between them"
        if dropped and piece == 1:
            note += f"; entries that are none count as missing: {listed(seen.counts, dropped)}"
        ends = outwards(seen.name, known)
        column = Column(f"{seen.name} {piece}", "number", ends, column=seen.name, split=mark, piece=piece, note=note)
        columns.append(replace(column, unknown="ignore") if dropped else column)
    return columns


def _identity(seen: Seen) -> Sequence[Column]:
    many = len(seen.counts) > _MOST_CATEGORIES
    named, measured = seen.named_id and (many or seen.all_different), ""
    if seen.whole:
        running = seen.all_different and np.ptp(seen.numbers) + 1 <= 1.01 * len(seen.numbers)
        if not (running or named):
            return ()
    else:
        mark = _mark(seen)
        spaced = not mark and bool(seen.words.str.contains(r"\s").any())
        told = named or seen.all_different or (bool(mark) and many and _repeats_as_ids_do(seen, mark))
        if spaced or not told or not np.isnan(seen.numbers).all():
            return ()
        if mark and not named:
            measured = f'; or two numbers with {mark} between them? Then make two columns of it by "split"'
    each = len(seen.words) / len(seen.counts)
    if each < _PERSONS:
        return (
            Column(
                seen.name, "ignore", note=f"an id: different in {'each' if seen.all_different else 'nearly each'} row{measured}"
            ),
        )
    note = f"an id that repeats, up to {max(seen.counts.values()):,} times"
    if seen.units is None:
        note += ": does it tell persons apart? Then it is the unit"
    return (Column(seen.name, "ignore", note=note + measured),)


def number(seen: Seen) -> Column | None:
    """A column of numbers, with the entries among them that are none; None where these are too many."""
    odd = seen.words[np.isnan(seen.numbers)]
    strangers = Counter(odd.tolist())
    used, read = _forms(strangers, seen.decimal)
    known = np.concatenate([seen.numbers[~np.isnan(seen.numbers)], [read[word] for word in odd if word in read]])
    dropped = [word for word in strangers if word not in read]
    foreign = sum(strangers[word] for word in dropped)
    worded = len(dropped) <= _FEW_STRANGERS and not any(map(str.isdigit, "".join(dropped)))
    if (
        len(known) < len(seen.numbers) / 2
        or not (~np.isnan(seen.numbers)).any()
        or foreign > (0.5 if worded else _STRANGERS) * len(seen.numbers)
        or len(dropped) > _MOST_STRANGERS
    ):
        return None
    low, high = float(known.min()), float(known.max())
    note = f"{'whole numbers' if np.all(np.mod(known, 1) == 0) else 'numbers'} from {low:.6g} to {high:.6g}{_units(seen)}"
    for form in used:
        such = [word for word in read if read_forms(word, (form,)) != word]
        what = "bounds, read as the number in them" if form == "bounds" else "of the other decimal mark, and read as well"
        note += f"; {sum(strangers[word] for word in such):,} entries are {what}: {listed(strangers, such)}"
    if foreign:
        note += f"; {foreign:,} entries are none, and count as missing: {listed(strangers, dropped)}"
    if (code := _code(known)) is not None:
        note += f'; does {code} stand for a missing value? Then say so: "read": {{"{code}": null}}'
    ends, unknown = outwards(seen.name, known), "ignore" if foreign else "error"
    return Column(seen.name, "number", ends, unknown=unknown, also_reads=tuple(used), note=note)


def _number(seen: Seen) -> Sequence[Column]:
    found = number(seen)
    return () if found is None else (found,)


def _forms(strangers: Counter[str], decimal: str) -> tuple[list[str], dict[str, float]]:
    """Return the further forms in which some entries are written, and the numbers in them."""
    used, read = list[str](), dict[str, float]()
    for word in strangers:
        for forms in (FORMS[:1], FORMS[1:], FORMS):
            found = _converted([read_forms(word, forms)], decimal)
            if read_forms(word, forms) != word and len(found):
                used += [form for form in forms if form not in used]
                read[word] = float(found[0])
                break
    return [form for form in FORMS if form in used], read


def _converted(entries: Sequence[str | float], decimal: str = ".") -> NDArray[np.float64]:
    import pandas as pd

    found = as_numbers(pd.Series(entries, dtype="object"), decimal)
    return found[np.isfinite(found)]


def _units(seen: Seen) -> str:
    """Return the currencies and percent signs beside the numbers of a column. They are dropped."""
    marks = Counter(found[1] for word in seen.counts if (found := _CURRENCIES.search(word)))
    return f", in {' and '.join(sorted(marks))}, which is not read" if marks else ""


def _code(known: NDArray[np.float64]) -> int | None:
    """A number that often stands for a missing value, -1 or 99 and the like, where it stands apart from the others."""
    different, counts = np.unique(known, return_counts=True)
    if len(different) < 3:
        return None
    often = int(np.argmax(counts))  # within the range, too: much more often than any other
    nines = set(f"{abs(different[often]):g}") == {"9"} and abs(different[often]) > 9
    if nines and counts[often] > max(_OFTEN * len(known), _SPIKE * np.delete(counts, often).max()):
        return int(different[often])
    for code, others in ((different[-1], different[:-1]), (different[0], different[1:])):
        text = f"{abs(code):g}"
        nines = set(text) == {"9"} and (code < 0 or len(text) > 1)
        nines |= code == 9 and others[-1] <= _SCALE  # 0, 1 and 9: no or yes, and not known
        apart = others[0] >= 0 if code < 0 else code > 2 * others[-1] and others[0] >= 0
        if apart and (nines or code == -1) and (known == code).sum() > 1:
            return int(code)
    return None


def _plain_header(seen: Seen) -> str:
    """The header in small letters, without the number and the remark behind it."""
    return _ADDED.sub("", _ADDED.sub("", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", seen.name).lower().strip()))


def _people(seen: Seen) -> Sequence[Column]:
    """Recognise people's names by the header. A name that many persons share would otherwise stand in every model."""
    header = _plain_header(seen)
    says = _NAMES.search(header) or _MORE_NAMES.search(header)
    codes = seen.words.str.contains(r"\d").mean() > 0.5  # P001 under "patient" is an id
    if not (says or (_WHOLLY.fullmatch(header) and not codes)) or not seen.words.str.contains(r"[^\W\d_]").mean() > 0.5:
        return ()
    note = (
        f"{len(seen.counts):,} names: of people? It is left out, for they would stand in the model. Otherwise make it a category"
    )
    return (Column(seen.name, "ignore", note=note),)


def _category(seen: Seen) -> Sequence[Column]:
    if seen.all_different or _prose(seen):
        return ()
    spelt, read = seen.spelt
    holders = seen.holders(read)
    common = [word for word in spelt if holders[word] >= seen.least]
    kept = tuple(sorted(sorted(common, key=lambda word: -spelt[word])[:_MOST_CATEGORIES]))
    if not kept:
        return ()
    beyond, rare = len(spelt) - len(kept), len(spelt) - len(common)
    covered = sum(spelt[word] for word in kept) / len(seen.words)
    numeric = int(np.isfinite(seen.numbers).sum())
    note = f"{len(spelt):,} values" + (f", the {len(kept)} most frequent: {covered:.0%} of the rows" if beyond else "")
    if rare:
        note += f"; {rare:,} that less than {seen.least} {seen.whose} hold are no category of their own"
    if numeric > len(seen.words) / 2 and len(spelt) > _FEW_NUMBERS:
        note += f'; {numeric / len(seen.words):.0%} are numbers: is it a number, with "unknown": "ignore"?'
    mine = {word: meant for word, meant in read.items() if meant in kept}
    column = Column(seen.name, "category", categories=kept, read=mine, note=note)
    # a level for others that no record has would be noise alone
    return (replace(column, other=True) if beyond else replace(column, unknown="ignore"),)


def _prose(seen: Seen) -> bool:
    words, letters = seen.words.str.split().str.len().mean(), seen.words.str.len().mean()
    return len(seen.counts) > _MOST_CATEGORIES and (words > _WORDS or letters > _LETTERS)


def _text(seen: Seen) -> Sequence[Column]:
    if _prose(seen):
        note = "free text"
    elif len(seen.counts) > len(seen.words) / 2:
        note = "a different text in nearly each row"
    else:
        note = f"{len(seen.counts):,} texts, none of which {seen.least} {seen.whose} hold"
    return (Column(seen.name, "ignore", note=note),)


_RECOGNISERS: Sequence[Callable[[Seen], Sequence[Column]]] = (
    _nothing, _truth, _moment, _pair, _people, _identity, _number, _category, _text
)  # fmt: skip

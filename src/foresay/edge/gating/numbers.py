# ruff: noqa: RUF001 (full-width and typographic signs are meant)
"""Numbers, dates, amounts of money and percentages in English and Chinese text.

Every function yields spans (start, end) of characters, in order; spans of one function do not
overlap. A false alarm costs a little speed, never a token, so the rules are short and not complete.

Every pattern takes linear time: what repeats without bound is followed by nothing that could fail,
and all else has a bounded length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

__all__ = ["dates", "money", "numbers", "percentages"]

Bounds: TypeAlias = tuple[int, int]

_LEFT, _RIGHT = "(?<![A-Za-z])", "(?![A-Za-z])"  # \b does not separate English from Chinese

# -- numbers -----------------------------------------------------------------------------------

_HAN = "〇○零一二两三四五六七八九十百千万亿兆壹贰叁肆伍陆柒捌玖拾佰仟萬億"
_WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|"
    "seventeen|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|"
    "thousand|million|billion|trillion|dozen"
)
_NUMBER = re.compile(
    r"(?P<digits>(?:(?<!\w)[-+−])?\d+(?:[.,:．：]\d+)*"  # \d has full-width digits too
    rf"(?:[eE][-+]?\d+|(?:st|nd|rd|th){_RIGHT}| ?[百千万亿兆]+)?)"
    rf"|(?P<han>第?[{_HAN}]+(?:点[{_HAN}]+)?)"
    rf"|(?P<words>{_LEFT}(?i:{_WORDS}){_RIGHT}"
    rf"(?:[- ](?i:and )?(?i:{_WORDS}|one){_RIGHT})*)"
)
_NO_NUMBERS = {
    *("一一", "万一", "千万", "万万", "万千", "千千万万", "三三两两", "七七八八", "一五一十"),
}
"""Runs of numerals that are words: by chance, by all means, one by one."""
_COUNTED = (
    *"年月日号时秒元岁个位次只条张本件名人倍度米斤吨层楼天句页点",
    *("分钟", "小时", "块钱", "角钱", "分钱", "欧元", "美元", "日元", "英镑", "成"),
)
"""What stands behind a single numeral that counts: 三个, not 三明治."""
_COUNTED_ONE = tuple("年月日号元岁")
"""The same for 一, which mostly means `a` or begins a word."""


def numbers(text: str) -> Iterator[Bounds]:
    """Digits (half and full width, with their sign, separators and magnitude), Chinese numerals,
    English number words.

    `one` alone and 一个 are articles more often than numbers and are left out.
    """
    for found in _NUMBER.finditer(text):
        if found["han"] is None or _counts(text, *found.span()):
            yield found.span()


def _counts(text: str, start: int, end: int) -> bool:
    """Whether Chinese numerals are a number, not a part of a word."""
    run = text[start:end]
    if len(run) > 1:
        return run not in _NO_NUMBERS
    return text.startswith(_COUNTED_ONE if run == "一" else _COUNTED, end) or text.endswith(
        "分之", max(0, start - 2), start
    )


# -- money and percentages ---------------------------------------------------------------------

_CURRENCY_BEFORE = re.compile(
    rf"(?:(?:{_LEFT}(?:US|HK|NT|A|C|S))?[$＄€£￡¥￥₩₹₽]"
    rf"|{_LEFT}(?:USD|EUR|GBP|JPY|CNY|RMB|HKD)|人民币) ?$"
)
_MAGNITUDE = re.compile(rf" ?(?:(?:thousand|million|billion|trillion|bn|mn|[kKmMbB]){_RIGHT})")
_CURRENCY_AFTER = re.compile(
    r" ?(?:美元|欧元|日元|港元|韩元|英镑|卢布|美金|人民币|块钱|角钱|分钱|元(?![旦素件首凶])"
    rf"|(?i:dollars?|euros?|pounds?|yuan|yen|cents?|bucks){_RIGHT}"
    rf"|(?:USD|EUR|GBP|JPY|CNY|RMB|HKD){_RIGHT}|[€£￡¥￥])"
)
_PERCENT_AFTER = re.compile(
    rf" ?(?:[%％‰]|(?i:percent|per cent|percentage points?){_RIGHT}|个?百分点"
    r"|成(?![为功立就员果熟长都本]))"
)


def money(text: str, found: Iterable[Bounds]) -> Iterator[Bounds]:
    """A number with a currency before or after it: $5, ¥ 20, 3.5 million euros, 三百元.

    `found` are the `numbers` of the text.
    """
    for start, end in found:
        before = _CURRENCY_BEFORE.search(text[max(0, start - 5) : start])
        magnitude = _MAGNITUDE.match(text, end)
        whole = magnitude.end() if magnitude else end
        after = _CURRENCY_AFTER.match(text, whole)
        if before or after:
            yield start - len(before[0]) if before else start, after.end() if after else whole


def percentages(text: str, found: Iterable[Bounds]) -> Iterator[Bounds]:
    """A number with a percent sign or word, 百分之 before it, or 成 (tenths) after it.

    `found` are the `numbers` of the text.
    """
    for start, end in found:
        after = _PERCENT_AFTER.match(text, end)
        before = text.endswith("百分之", max(0, start - 3), start)
        if before or after:
            yield start - 3 if before else start, after.end() if after else end


# -- dates -------------------------------------------------------------------------------------

_MONTH = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    "Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?(?![A-Za-z\d])"
_YEAR = r"\d{4}(?!\d)"
_H = r"[\d〇○零一二三四五六七八九十]"  # a digit or numeral
_H_YEAR = r"[\d〇○零一二三四五六七八九]{4}"
_MONTH_DAY = rf"{_H}{{1,3}} ?月(?:份|底|初| ?{_H}{{1,3}} ?[日号])?"
_DATE = re.compile(
    rf"(?<!\d)\d{{4}}(?P<mark>[-/.])\d{{1,2}}(?P=mark)\d{{1,2}}(?!\d)"  # 2024-03-05
    r"|(?<!\d)\d{1,2}/\d{1,2}/(?:\d{4}|\d{2})(?!\d)"  # 3/5/2024
    rf"|(?<!{_H}){_H_YEAR} ?年(?: ?{_MONTH_DAY})?"  # 2024年3月5日
    rf"|(?<!{_H}){_H}{{2}} ?年 ?{_MONTH_DAY}"  # 98年3月
    rf"|(?<!{_H}){_MONTH_DAY}"  # 3月5日
    r"|(?:星期|礼拜|周)[一二三四五六日天]"
    rf"|{_LEFT}{_MONTH}\.? {_DAY}(?:,? {_YEAR})?"  # March 5, 2024
    rf"|{_LEFT}{_MONTH}\.?,? {_YEAR}"  # March 2024
    rf"|(?<!\d)\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH}{_RIGHT}\.?(?:,? {_YEAR})?"  # 5 March 2024
    rf"|{_LEFT}(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)days?{_RIGHT}"
)


def dates(text: str) -> Iterator[Bounds]:
    """Dates with a day, a month or a year, and weekdays. A month's English name alone is none, as
    `may` and `march` are words; nor is a duration such as 三十年."""
    for found in _DATE.finditer(text):
        yield found.span()

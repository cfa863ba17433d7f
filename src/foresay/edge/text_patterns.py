# ruff: noqa: RUF001 (full-width and typographic signs are meant)
"""The rules that need no table: numbers, dates, money, percentages and names, in English and
Chinese text. `PATTERNS` has a function for each.

Every function yields spans (start, end) of characters, which do not overlap. A false alarm costs a
little speed, never a token, so the rules are short and not complete: names are guessed.

Every pattern takes linear time: what repeats without bound is followed by nothing that could fail,
and all else has a bounded length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

__all__ = ["PATTERNS"]

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


def _numbers(text: str) -> Iterator[Bounds]:
    """Digits (half and full width, with their sign, separators and magnitude), Chinese numerals,
    English number words. `one` alone and 一个 are articles more often, and are left out."""
    for found in _NUMBER.finditer(text):
        run, end = found[0], found.end()
        counts = run not in _NO_NUMBERS
        if found["han"] is not None and len(run) == 1:
            unit = text.startswith(_COUNTED_ONE if run == "一" else _COUNTED, end)
            counts = unit or text.endswith("分之", max(0, end - 3), end - 1)
        if counts:
            yield found.span()


# -- money and percentages ---------------------------------------------------------------------

_MAGNITUDE = rf" ?(?:(?:thousand|million|billion|trillion|bn|mn|[kKmMbB]){_RIGHT})"
_UNITS = {
    "money": (  # $5, ¥ 20, 3.5 million euros, 三百元
        re.compile(
            rf"(?:(?:{_LEFT}(?:US|HK|NT|A|C|S))?[$＄€£￡¥￥₩₹₽]"
            rf"|{_LEFT}(?:USD|EUR|GBP|JPY|CNY|RMB|HKD)|人民币) ?$"
        ),
        re.compile(
            rf"(?:{_MAGNITUDE})?"
            r"(?P<unit> ?(?:美元|欧元|日元|港元|韩元|英镑|卢布|美金|人民币|块钱|角钱|分钱"
            rf"|元(?![旦素件首凶])|(?i:dollars?|euros?|pounds?|yuan|yen|cents?|bucks){_RIGHT}"
            rf"|(?:USD|EUR|GBP|JPY|CNY|RMB|HKD){_RIGHT}|[€£￡¥￥]))?"
        ),
    ),
    "percentage": (  # 成 are tenths
        re.compile("百分之$"),
        re.compile(
            rf"(?P<unit> ?(?:[%％‰]|(?i:percent|per cent|percentage points?){_RIGHT}|个?百分点"
            r"|成(?![为功立就员果熟长都本])))?"
        ),
    ),
}
"""What stands before and behind a number of that kind; one of them is enough."""


def _amounts(kind: str) -> Callable[[str], Iterator[Bounds]]:
    before, behind = _UNITS[kind]

    def amounts(text: str) -> Iterator[Bounds]:
        for start, end in _numbers(text):
            left, right = before.search(text[max(0, start - 5) : start]), behind.match(text, end)
            assert right is not None  # all of it is optional
            if left or right["unit"]:
                yield start - len(left[0]) if left else start, right.end()

    return amounts


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


def _dates(text: str) -> Iterator[Bounds]:
    """Dates with a day, a month or a year, and weekdays. A month's English name alone is none, as
    `may` and `march` are words; nor is a duration such as 三十年."""
    for found in _DATE.finditer(text):
        yield found.span()


# -- names -------------------------------------------------------------------------------------


_LETTERS = "A-Za-zÀ-ÖØ-öø-ɏ"
_WORD = re.compile(rf"[{_LETTERS}]+(?:['’\-][{_LETTERS}]+)*")
_NO_NAMES = re.compile(
    rf"I(?:['’](?:m|ll|ve|d))?|{_MONTH}|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
)
"""Always capitalised in English, and no names."""
_ABBREVIATION = re.compile("Mr|Mrs|Ms|Dr|Prof|St|Sen|Rep|Gen|Col|Capt|Lt|Jr|Sr|vs|No")
"""The point behind them ends no sentence."""
_OPENING = frozenset(" \t\"'“”‘’「『《（([{*#>•-–—")
_ENDS = frozenset("!?。！？…\n")


def _english(text: str) -> Iterator[Bounds]:
    run: Bounds | None = None  # the name so far: words with one space, or a point and it, between
    last, last_end = "", 0  # the word before this one, and where it ends
    for found in _WORD.finditer(text):
        word, (start, end) = found[0], found.span()
        if (
            word[0].isupper()
            and (len(word) > 1 or text.startswith(".", end))
            and not _NO_NAMES.fullmatch(word)
            and not _begins_sentence(text, start, last, last_end)
        ):
            if run and text[run[1] : start] in (" ", ". "):
                start = run[0]
            elif run:
                yield run
            run = start, end
        last, last_end = word, end
    if run:
        yield run


def _begins_sentence(text: str, start: int, last: str, last_end: int) -> bool:
    """Looks back no further than to the word before, so all calls together are linear."""
    at, quoted = start, False
    while at and text[at - 1] in _OPENING:
        quoted = quoted or not text[at - 1].isspace()
        at -= 1
    if at == 0 or text[at - 1] in _ENDS:
        return True
    if text[at - 1] == ".":
        short = _ABBREVIATION.fullmatch(last) or (len(last) == 1 and last.isupper())
        return not (short and at - 1 == last_end)
    return quoted and text[at - 1] in ",:，："


_PLAIN = (
    "王李刘陈杨赵吴徐孙郭梁宋郑谢韩冯董萧曹袁邓沈彭吕苏卢"
    "蒋蔡贾魏薛阎潘戴姚谭廖邹陆郝崔邱秦邵孟尹黎乔龚"
)
_ALSO_WORDS = (
    "张黄周高林何马罗程于许傅曾丁叶余杜夏钟汪田任姜范方石"
    "熊金孔白康毛江史顾侯龙段雷钱汤易常武贺赖文胡朱唐"
)
_DOUBLE = "欧阳|司马|上官|诸葛|司徒|皇甫|慕容|令狐|夏侯|尉迟|公孙|长孙|宇文"
_TITLES = "先生|女士|小姐|太太|老师|教授|医生|博士|经理|主任|局长|院士|总统|主席|同志"
_BEFORE_A_NAME = "和与跟对向给由叫是请问找见到的了说为让被把同"
"""Behind any other character, a surname that is also a word is taken for the end of a word."""
_NOT_GIVEN = (
    "的是在了和与跟对向给由叫请问说道去来到有没不也就都要会能可将把被让使"
    "从为以于因但而则或及等这那哪什怎我你他她它们先后上下里外前出回进起过"
    "着住看听写做用想得个很最更已又还才只再当该此其"
)
"""Characters that a given name does not have, as they nearly always go on with the sentence."""
_NO_SURNAME = (
    "王国 王朝 王子 王后 王牌 王者 李子 杨树 杨柳 谢谢 宋代 宋朝 韩国 韩语 秦代 秦朝 苏州 "
    "苏联 苏打 郑州 郑重 徐州 徐徐 孙子 孙女 魏晋 陆地 陆续 陆军 陈述 陈列 陈旧 刘海 沈阳 "
    "董事 孟加 黎明 乔装 梁山 张开 张贴 张嘴 张力 周末 周围 周年 周期 周边 周到 周一 周二 "
    "周三 周四 周五 周六 周日 周岁 高兴 高度 高级 高中 高速 高等 高效 高峰 高山 高考 高手 "
    "高温 高大 高质 高层 高校 高铁 林业 林木 何时 何地 何必 何况 何处 何人 何种 马路 马车 "
    "马力 马匹 罗马 罗列 黄色 黄金 黄河 黄昏 黄瓜 程序 程度 许多 许可 许久 曾经 叶子 叶片 "
    "余额 余地 杜绝 夏天 夏季 夏日 钟头 钟表 田地 田野 任务 任何 任意 任命 范围 范例 方法 "
    "方面 方向 方便 方式 方案 方程 方形 石头 石油 熊猫 金额 金属 金融 金色 金钱 金牌 孔子 "
    "孔雀 白色 白天 白菜 白云 康复 毛病 毛巾 江南 江水 史料 史书 顾客 顾问 顾及 龙头 段落 "
    "雷达 雷雨 钱包 常见 常常 常用 常识 常规 武器 武术 武汉 贺卡 文化 文章 文件 文字 文学 "
    "文明 文本 胡子 胡同 胡说 唐朝 唐代 丁香 汤圆 易懂"
)
"""Common words that begin with a surname."""


_HAN_CHARACTER = "[\u4e00-\u9fff]"
_CHINESE = re.compile(
    rf"(?=[{_PLAIN}{_ALSO_WORDS}]|{_DOUBLE})(?!{_NO_SURNAME.replace(' ', '|')})"
    rf"(?:{_DOUBLE}|(?!{_DOUBLE})(?:[{_PLAIN}]"
    rf"|(?:(?<!{_HAN_CHARACTER})|(?<=[{_BEFORE_A_NAME}]))[{_ALSO_WORDS}]))"
    rf"(?:{_TITLES}|(?:(?![{_NOT_GIVEN}]){_HAN_CHARACTER}){{1,2}})"
)


def _names(text: str) -> Iterator[Bounds]:
    """English: capitalised words that do not begin a sentence. Chinese: a common surname and one
    or two characters, or a surname and a title."""
    yield from _english(text)
    for found in _CHINESE.finditer(text):
        yield found.span()


PATTERNS: dict[str, Callable[[str], Iterator[Bounds]]] = {
    "number": _numbers,
    "date": _dates,
    "money": _amounts("money"),
    "percentage": _amounts("percentage"),
    "name": _names,
}
"""The spans of each kind in a text."""

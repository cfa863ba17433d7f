# ruff: noqa: RUF001 (full-width and typographic signs are meant)
"""Names of people, places and organisations, guessed without a model.

English: capitalised words that do not begin a sentence. Chinese: a common surname and one or two
characters, or a surname and a title. Both miss names and take words for names. That costs a little
speed, never a token. One pass over the text, linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from foresay.edge.gating.numbers import Bounds

__all__ = ["names"]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_LETTERS = "A-Za-zÀ-ÖØ-öø-ɏ"
_WORD = re.compile(rf"[{_LETTERS}]+(?:['’\-][{_LETTERS}]+)*")
_NO_NAMES = _set(
    "I I'm I'll I've I'd I’m I’ll I’ve I’d "
    "January February March April May June July August September October November December "
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec "
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
)
"""Always capitalised in English, and no names."""
_ABBREVIATIONS = _set("Mr Mrs Ms Dr Prof St Sen Rep Gen Col Capt Lt Jr Sr vs No")
"""The point behind them ends no sentence."""
_OPENING = frozenset(" \t\"'“”‘’「『《（([{*#>•-–—")
_ENDS = frozenset("!?。！？…\n")


def names(text: str) -> Iterator[Bounds]:
    """English and Chinese names; the spans of each language in order, English first."""
    yield from _english(text)
    yield from _chinese(text)


def _english(text: str) -> Iterator[Bounds]:
    run: Bounds | None = None  # the name so far: words with one space, or a point and it, between
    last = ""  # the word before this one, and where it ends
    last_end = 0
    for found in _WORD.finditer(text):
        word, (start, end) = found[0], found.span()
        initial = len(word) == 1 and text.startswith(".", end)
        if (
            word[0].isupper()
            and (len(word) > 1 or initial)
            and word not in _NO_NAMES
            and not _begins_sentence(text, start, last, last_end)
        ):
            if run and text[run[1] : start] in (" ", ". "):
                run = run[0], end
            else:
                if run:
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
        short = last in _ABBREVIATIONS or (len(last) == 1 and last.isupper())
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
_SURNAME = re.compile(f"{_DOUBLE}|[{_PLAIN}{_ALSO_WORDS}]")
_TITLES = (
    *("先生", "女士", "小姐", "太太", "老师", "教授", "医生", "博士", "经理", "主任", "局长"),
    *("院士", "总统", "主席", "同志"),
)
_BEFORE_A_NAME = frozenset("和与跟对向给由叫是请问找见到的了说为让被把同")
"""Behind any other character, a surname that is also a word is taken for the end of a word."""
_NOT_GIVEN = frozenset(
    "的是在了和与跟对向给由叫请问说道去来到有没不也就都要会能可将把被让使"
    "从为以于因但而则或及等这那哪什怎我你他她它们先后上下里外前出回进起过"
    "着住看听写做用想得个很最更已又还才只再当该此其"
)
"""Characters that a given name does not have, as they nearly always go on with the sentence."""
_WORDS = _set(
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
    "文明 文本 胡子 胡同 胡说 唐朝 唐代 丁香 汤圆 易懂 "
)
"""Common words that begin with a surname."""


def _chinese(text: str) -> Iterator[Bounds]:
    done = 0
    for found in _SURNAME.finditer(text):
        start, end = found.span()
        if start < done or text[start : start + 2] in _WORDS:
            continue
        before = text[start - 1 : start]
        if found[0] in _ALSO_WORDS and _is_han(before) and before not in _BEFORE_A_NAME:
            continue
        title = next((t for t in _TITLES if text.startswith(t, end)), "")
        if title:
            done = end + len(title)
        else:
            done = end
            while done < end + 2 and _is_given(text[done : done + 1]):
                done += 1
        if done > end:
            yield start, done


def _is_given(character: str) -> bool:
    return _is_han(character) and character not in _NOT_GIVEN


def _is_han(character: str) -> bool:
    return "\u4e00" <= character <= "\u9fff"

"""The bound on the automata of own texts, for members of groups."""

from __future__ import annotations

import numpy as np

from doubles import tokens
from foresay import Verdict
from foresay.drafters import SuffixDrafter


def test_members_of_groups_keep_a_bound_on_their_own_texts() -> None:
    """The longest lose their own automaton, and draft from their group, where their text is."""
    bound = 200_000
    drafter = SuffixDrafter(history=False, own_bytes=bound)
    free = SuffixDrafter(history=False)
    long = np.arange(400, dtype=np.int32)
    for each in (drafter, free):
        members = [each.begin(tokens(1, 2, 3), group="g") for _ in range(8)]
        alone = each.begin(tokens(1, 2, 3))
        for _ in range(32):
            told = [*members, alone]
            each.observe(told, [Verdict([], long + 1000 * i) for i in range(len(told))])
        each.check_integrity()
        drafts = each.propose([*members, alone], [4] * 9)
        assert all(len(draft) for draft in drafts)
        for i, draft in enumerate(drafts):
            assert draft.tokens[0] == 1000 * i
        for member in members:
            each.finish(member)
        each.drop_group("g")
        held = each.bytes_of(None)
        each.finish(alone)
        if each is drafter:
            assert held > bound  # of the one that is in no group, nothing was dropped
    assert drafter.bytes_used() == free.bytes_used()


def test_the_bound_on_own_texts_lowers_the_peak() -> None:
    peaks = []
    for bound in (1 << 50, 300_000):
        drafter = SuffixDrafter(history=False, own_bytes=bound)
        members = [drafter.begin(tokens(1, 2, 3), group="g") for _ in range(8)]
        random = np.random.default_rng(0)
        for _ in range(48):
            texts = random.integers(0, 500, (8, 100), np.int32)
            drafter.observe(members, [Verdict([], text) for text in texts])
        peaks.append(drafter.bytes_used())
    assert peaks[1] < 0.75 * peaks[0]

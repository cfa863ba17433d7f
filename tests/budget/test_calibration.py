"""What is learned of scores, and what is made of it, which the core computes."""

from __future__ import annotations

import numpy as np

from foresay.budget.calibration import ScoreCalibration
from foresay.budget.load import parents_of
from foresay.draft import Draft, DraftBatch


def test_what_is_learned_of_a_class_is_used_for_it() -> None:
    """Observations fall into classes here, and the core looks them up: also at their very edges."""
    calibration = ScoreCalibration()
    calibration._gap[:] = np.arange(len(calibration._gap)) * 1e-4
    for score in (*calibration._edges.astype(np.float32).tolist(), 0.0, 0.3, 1.0):
        below = np.nextafter(np.float32(score), np.float32(0)).item()
        drafts = [Draft.chain([1, 2], [1.0, score]), Draft.chain([3], [score])]
        batch = DraftBatch.of([*drafts, Draft.chain([3], [below])])
        stated, kinds = calibration._classed(batch, parents_of(batch))
        wanted = np.clip(stated + calibration._gap[kinds], 1e-6, 1 - 1e-9)
        wanted[1] *= wanted[0]
        assert np.allclose(calibration(batch), wanted, rtol=1e-12, atol=0)

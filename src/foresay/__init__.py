"""Language models answer faster without changing a single answer.

foresay guesses the next tokens from text that already exists, lets the model check all guesses in
one pass, and keeps what the model would have written anyway. The drafters are in
`foresay.drafters`, the corpus files in `foresay.corpus`, every error in `foresay.errors`.

Importing this package needs numpy and nothing else.
"""

from foresay.draft import Draft, DraftBatch, Verdict, VerdictBatch, Wants
from foresay.drafter import Drafter
from foresay.errors import ForesayError
from foresay.sampling.params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "Draft",
    "DraftBatch",
    "Drafter",
    "ForesayError",
    "SamplingParams",
    "Verdict",
    "VerdictBatch",
    "Wants",
    "__version__",
]

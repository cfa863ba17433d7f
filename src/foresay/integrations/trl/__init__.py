"""foresay inside TRL: the rollouts of GRPOTrainer on foresay's engine.

    from foresay.integrations.trl import ForesayGRPOTrainer, foresay_rollouts

    GRPOTrainer(model, reward_funcs, args, train_dataset=data, rollout_func=foresay_rollouts())
    ForesayGRPOTrainer(model, reward_funcs, args, train_dataset=data)

The first is a function for TRL's own hook. The second is GRPOTrainer with `ForesayMixin`, which
replaces one method of it: tools work too, and comparing log probabilities costs no forward pass.
Drafts change no token: with `Settings(drafter=None)` all losses and parameters are the same.

function, mixin  the two
settings         what both take
sampler          prompts through `foresay.rl.Rollouts`: groups, seeds, weights, metrics
model            a target from a copy of the trainer's model, or why there is none
difference       log probabilities of the rollouts against the trainer's own
"""

from foresay.integrations.trl.function import foresay_rollouts
from foresay.integrations.trl.mixin import ForesayGRPOTrainer, ForesayMixin
from foresay.integrations.trl.settings import Settings

__all__ = ["ForesayGRPOTrainer", "ForesayMixin", "Settings", "foresay_rollouts"]

"""Real GRPO training of a tiny model on a CPU: 77 thousand parameters, 50 words, float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from foresay.integrations.trl import ForesayGRPOTrainer, Settings, foresay_rollouts
from tiny import randomise

WORDS = ["<pad>", "<eos>", "<unk>", *(str(n) for n in range(10)), *(f"w{n}" for n in range(37))]
PROMPTS = ["w1 w2 w3 1 2", "w5 w6 7", "w8 w9 w8 w9", "3 4 5 w11 w12"]
SUFFIX = Settings(drafter="suffix", policy="fixed")
NONE = Settings(drafter=None)
TEMPLATE = "{% for m in messages %}w0 {{ m['content'] }} {% endfor %}"


def tokenizer() -> Any:
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    made.chat_template = TEMPLATE
    return made


def model(dtype: torch.dtype = torch.float32) -> Any:
    """Large random weights: it repeats itself."""
    shape = Qwen3Config(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    made: Any = Qwen3ForCausalLM(shape)
    randomise(made, seed=3, size=0.2)
    return made.to(dtype)


def digits(completions: list[Any], **_: Any) -> list[float]:
    """The share of digits among the words."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [sum(w.isdigit() for w in text.split()) / (1 + len(text.split())) for text in texts]


@dataclass
class Trained:
    """What three steps left behind."""

    trainer: Any
    rollouts: Any
    texts: list[list[list[int]]]
    logged: list[dict[str, float]]
    weights: dict[str, Tensor]
    passes: float = field(init=False)

    def __post_init__(self) -> None:
        self.passes = sum(row.get("foresay/target_passes", 0) for row in self.steps)

    @property
    def steps(self) -> list[dict[str, float]]:
        """What was logged of each training step."""
        return [row for row in self.logged if "loss" in row]


def make(
    folder: Path,
    how: str,
    settings: Settings = SUFFIX,
    reward: Callable[..., list[float]] = digits,
    prompts: list[Any] | None = None,
    trained: Any = None,
    arguments: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """A trainer with the rollout function, or with the mixin. `arguments` are the trainer's, `more`
    its config's."""
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 32,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "temperature": 0.7,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 7,
        **more,
    }
    data = Dataset.from_dict({"prompt": PROMPTS if prompts is None else prompts})
    shared: dict[str, Any] = {
        "model": model() if trained is None else trained,
        "reward_funcs": reward,
        "args": GRPOConfig(**given),
        "train_dataset": data,
        "eval_dataset": data,
        "processing_class": tokenizer(),
        **(arguments or {}),
    }
    if how == "mixin":
        return ForesayGRPOTrainer(**shared, foresay=settings)
    return GRPOTrainer(**shared, rollout_func=foresay_rollouts(settings))


def sampler_of(trainer: Any) -> Any:
    return trainer.sampler if hasattr(trainer, "sampler") else trainer.rollout_func.sampler


def train(folder: Path, how: str, settings: Settings = SUFFIX, **more: Any) -> Trained:
    texts: list[list[list[int]]] = []

    def noting(completions: list[Any], completion_ids: list[list[int]], **rest: Any) -> list[float]:
        texts.append([list(ids) for ids in completion_ids])
        return digits(completions, **rest)

    trainer = make(folder, how, settings, noting, **more)
    trainer.train()
    weights = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    return Trained(trainer, sampler_of(trainer).rollouts, texts, trainer.state.log_history, weights)

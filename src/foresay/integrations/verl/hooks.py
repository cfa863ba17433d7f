"""The two places in verl that foresay hooks into: where vLLM gets weights, and where it answers.

Both are in processes of vLLM on the machines of the rollout. When verl imports its plugins neither
module has been imported, so the hooks are set when vLLM starts (`when_vllm_starts`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import sys
from typing import Any

from foresay import __version__
from foresay.integrations.vllm.versions import watch, when_vllm_starts

__all__ = ["hook_metrics", "hook_weights", "install"]

_TESTED = (0, 9)
_WORKER = "verl.workers.rollout.vllm_rollout.utils"
_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
_EXTRACT = ["output", "num_prompt_logprobs", "result_dict"]
_installed = False

log = logging.getLogger("foresay.verl")


def install() -> None:
    """Check verl's version, and have the hooks set when vLLM starts in this process. A second call
    changes nothing.
    """
    global _installed
    if _installed:
        return
    _installed = True
    version = str(getattr(sys.modules.get("verl"), "__version__", "?"))
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) != _TESTED:
        log.warning(
            "foresay: verl %s is not supported by foresay %s; expected 0.9. Look for the line "
            "`foresay: weights changed` in the log of the rollout",
            version,
            __version__,
        )
    when_vllm_starts(hook_weights)
    when_vllm_starts(hook_metrics)


def hook_weights() -> None:
    """Count every update of the weights by verl's worker extension, LoRA adapters too: replaces its
    method, once, if its module has been imported.
    """
    module = sys.modules.get(_WORKER)
    if module is None:
        return
    extension = getattr(module, "vLLMColocateWorkerExtension", None)
    if not watch(extension, "update_weights_from_ipc"):
        _warn_once(
            "foresay: this verl has no vLLMColocateWorkerExtension.update_weights_from_ipc; new "
            "weights are noticed by the model's load_weights alone, LoRA adapters are not"
        )


def hook_metrics() -> None:
    """Give verl each answer's counts of drafted and accepted tokens, where vLLM counts them
    (its option per_request_spec_decode_metrics). verl fills them in for MTP alone, and averages
    them whoever did: rollout/spec_accept_rate, rollout/spec_accept_length. Replaces a function of
    verl's server, once, if that has been imported.
    """
    module: Any = sys.modules.get(_SERVER)
    theirs = getattr(module, "extract_prompt_logprobs", None)
    if theirs is None or hasattr(theirs, "_foresay"):
        return  # verl goes on without these metrics
    given = list(inspect.signature(theirs).parameters)
    if given != _EXTRACT:
        _warn_once(
            f"foresay: this verl's extract_prompt_logprobs takes {', '.join(given)}, not "
            f"{', '.join(_EXTRACT)}; it gets no metrics of speculation"
        )
        return
    counted = False  # whether this vLLM counts

    @functools.wraps(theirs)
    def extract_prompt_logprobs(output: Any, num_prompt_logprobs: Any, result_dict: Any) -> None:
        nonlocal counted
        theirs(output, num_prompt_logprobs, result_dict)
        metrics = getattr(output.outputs[0], "spec_decode_metrics", None)
        counted = counted or metrics is not None
        if counted:  # then for every answer: verl wants them of all, or of none
            steps = metrics.histogram if metrics is not None else []
            drafted = metrics.num_draft_tokens if metrics is not None else 0
            accepted = sum(most * times for most, times in enumerate(steps))
            result_dict.setdefault("spec_num_draft_tokens", drafted)
            result_dict.setdefault("spec_num_accepted_tokens", accepted)
            result_dict.setdefault("spec_num_verify_steps", sum(steps))

    extract_prompt_logprobs._foresay = True  # type: ignore[attr-defined]
    module.extract_prompt_logprobs = extract_prompt_logprobs


@functools.cache
def _warn_once(sentence: str) -> None:
    log.warning(sentence)

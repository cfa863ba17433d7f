"""Run our proposer in the real vLLM under verl's own worker extension, and write what came of it.

    python drive.py MODEL SPECULATION.json RESULT.json

The weights come as from a trainer: through verl's sender and receiver, in shared memory. Between
them the same prompts are answered by the weights as they were, by the same weights sent again, and
by others.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "passive",
    "TORCHDYNAMO_DISABLE": "1",
    "VERL_REPLICA_RANK": "0",
    "VERL_RAY_JOB_ID": f"foresay-{os.getpid()}",
}
VLLM: Any = import_module("vllm")
TRANSFER: Any = import_module("verl.workers.rollout.vllm_rollout.bucketed_weight_transfer")
TENSORS: Any = import_module("safetensors.torch")

# verl looks for a GPU: its sender and receiver wait for it, and empty its caches. Nothing else of
# them is changed here.
NO_GPU = SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None)
TRANSFER.get_torch_device = lambda: NO_GPU
TRANSFER.is_support_ipc = lambda: False

PROMPTS = [
    "1. red\n2. green\n3. blue\n4. red\n5. green\n6. blue\n7. red\n8.",
    "name,age,city\nAnn,31,Rome\nBob,42,Oslo\nEve,27,Rome\nDan,35,",
]


def weights(model: Path, factor: float) -> Iterator[tuple[str, Any]]:
    """The model's own norms, multiplied by a factor. vLLM for CPUs has packed the other weights
    when it started, and cannot load them again, whoever asks.
    """
    for name, tensor in TENSORS.load_file(model / "model.safetensors").items():
        if "norm" in name:
            yield name, tensor * factor


def update(llm: Any, model: Path, factor: float) -> None:
    """As verl's ServerAdapter.update_weights: the worker receives while the trainer sends."""
    handle = llm.collective_rpc("_get_zmq_handle")[0]
    sender = TRANSFER.BucketedWeightSender(handle, bucket_size_mb=1, use_shm=True)

    def send() -> None:
        try:
            asyncio.run(sender.async_send_weights(weights(model, factor)))
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the worker would wait for ever

    thread = threading.Thread(target=send)
    thread.start()
    llm.collective_rpc("update_weights_from_ipc", kwargs={"use_shm": True})
    thread.join()


def main(model: Path, speculation: dict[str, Any], out: Path) -> None:
    llm = VLLM.LLM(
        str(model),
        dtype="float32",
        max_model_len=512,
        max_num_seqs=8,
        enforce_eager=True,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
        worker_extension_cls=(
            "verl.workers.rollout.vllm_rollout.utils.vLLMColocateWorkerExtension"
        ),
        per_request_spec_decode_metrics="summary",
        speculative_config=speculation,
    )
    params = VLLM.SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, logprobs=0)
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    drafter = worker.model_runner.drafter
    found: list[dict[str, Any]] = []
    for factor in (None, 1.0, 1.5):
        if factor is not None:
            update(llm, model, factor)
        answers = llm.generate(PROMPTS, params, use_tqdm=False)
        found.append(
            {
                "texts": [list(answer.outputs[0].token_ids) for answer in answers],
                "histograms": [a.outputs[0].spec_decode_metrics.histogram for a in answers],
                "stats": asdict(drafter.stats()),
                "hooked": hasattr(type(worker).update_weights_from_ipc, "_foresay"),
            }
        )
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    main(Path(sys.argv[1]), given, Path(sys.argv[3]))

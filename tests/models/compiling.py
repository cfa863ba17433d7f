"""Compiles the kernels of models/gpu for a Hopper GPU where there is none, and prints what each of
them takes: a process of its own, without Triton's interpreter. The kernels are not run.

Triton is told of a device that it can compile for; its compiler and NVIDIA's assembler come with
it.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler.compiler import CompiledKernel  # type: ignore[import-untyped]
from triton.runtime import JITFunction, driver  # type: ignore[import-untyped]

from foresay.models.gpu import attention as attention_module
from foresay.models.gpu import products
from foresay.models.gpu.attention import Heads, attention
from foresay.models.gpu.inputs import StepInputs
from foresay.models.gpu.product_shapes import shape_of
from foresay.models.gpu.products import gated_product, matrix_of, product

BF16 = torch.bfloat16
ROWS = (16, 96, 160, 256)  # one of each kernel and number of tiles
HEADS = (Heads(12, 2, 128, 128), Heads(8, 4, 256, 256))


class Hopper:
    """What is asked of a driver before a kernel is run."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0


def main() -> None:
    compiled = dict[str, Any]()
    run, made = JITFunction.run, CompiledKernel.__init__
    name = ""

    def only_compile(self: Any, *given: Any, **more: Any) -> Any:
        return run(self, *given, **{**more, "warmup": True})

    def note(self: Any, *given: Any, **more: Any) -> None:
        made(self, *given, **more)
        compiled[f"{self.name} {name}"] = self

    def hopper(_: torch.device) -> dict[str, Any]:
        return {"chained": True, "launch_pdl": True, "enable_fp_fusion": True}

    driver.set_active(Hopper())
    JITFunction.run, CompiledKernel.__init__ = only_compile, note
    for module in (products, attention_module):
        vars(module).update(chained=hopper, is_hopper=lambda _: True)
    for count in ROWS:
        for gated in (False, True):
            name = f"{count} {shape_of(count, BF16, gated=gated).kernel}"
            rows = torch.empty(count, 4096, dtype=BF16)
            weights = torch.empty(2 * 6144, 4096, dtype=BF16)
            if gated:
                gate, up = weights.split(6144)
                gated_product(rows, gate, up, rows.new_empty(count, 6144), gelu=False)
            else:
                matrix = matrix_of(weights[:4096], weights[4096:5120], weights[5120:6144])
                product(rows, matrix, torch.empty(matrix.parts, count, matrix.outputs))
    for heads in HEADS:
        pool = torch.empty(2, 4, heads.keys, 64, heads.padded, dtype=BF16)
        query = torch.empty(16, heads.queries, heads.padded, dtype=BF16)
        results = torch.empty(64, heads.queries, heads.padded)
        for by_span in (False, True) if heads.padded <= 128 else (False,):
            name = f"{heads.padded} {'spans' if by_span else 'chunks'}"
            inputs = StepInputs.of(torch.zeros(4096, dtype=torch.int32), 16, 16, by_span)
            attention(
                query, pool[0], pool[1], inputs, results, torch.empty(128, heads.queries),
                query.new_empty(16, heads.queries * heads.width), heads, scaling=1.0,
            )  # fmt: skip
    print(json.dumps({each: taken(kernel) for each, kernel in compiled.items()}))


def taken(kernel: Any) -> dict[str, int]:
    """Registers, bytes of registers that are kept in memory, and bytes of shared memory."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    spilled = found["STACK"] + found["LOCAL"]
    return {"registers": found["REG"], "spilled": spilled, "shared": kernel.metadata.shared}


if __name__ == "__main__":
    main()

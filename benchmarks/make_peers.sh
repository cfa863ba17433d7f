#!/bin/sh
# Builds the virtual environment the peer benchmarks run in.
#   usage: make_peers.sh VENV        (python: $PYTHON, default python3)
#
# ArcticInference ships as an sdist whose build wants torch, grpcio-tools,
# nanobind, cmake and ninja. Building it in isolation would fetch a second torch,
# so the build requirements go into the environment and isolation is off.
# torch is pinned everywhere: any other version may pull gigabytes of CUDA.
set -eu
venv=${1:?usage: make_peers.sh VENV}
torch=torch==2.13.0

test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
PATH="$(cd "$venv/bin" && pwd):$PATH"          # the build calls cmake and ninja by name
echo "$torch" > "$venv/constraints.txt"
PIP_CONSTRAINT="$(cd "$venv" && pwd)/constraints.txt"
export PATH PIP_CONSTRAINT

pip install -q "$torch" numpy
pip install -q setuptools wheel nanobind==2.9.2 cmake ninja grpcio-tools
pip install -q --no-deps --no-build-isolation arctic-inference==0.3.0
pip install -q transformers numba

python - <<'PY'
import sys
from importlib.metadata import version
from arctic_inference.suffix_decoding import SuffixDecodingCache
assert "vllm" not in sys.modules
SuffixDecodingCache(max_tree_depth=24, max_cached_requests=0)
print(*(f"{p} {version(p)}" for p in ("arctic-inference", "torch", "numpy", "transformers", "numba")), sep=", ")
PY

#!/bin/sh
# Builds the virtual environment the peer benchmarks run in.
#   usage: make_peers.sh VENV [core] [processors]   (without a name both; python: $PYTHON, default python3)
#
# core        ArcticInference ships as an sdist whose build wants torch, grpcio-tools,
#             nanobind, cmake and ninja. Building it in isolation would fetch a second torch,
#             so the build requirements go into the environment and isolation is off.
# processors  llama.cpp, compiled for this machine: a wheel for any machine would lack its
#             instructions. The wheel stays in VENV/wheels, so that it is built once.
#
# torch is pinned everywhere: any other version may pull gigabytes of CUDA.
set -eu
venv=${1:?usage: make_peers.sh VENV [core] [processors]}
shift
torch=torch==2.13.0
llama=0.3.36

for part in ${*:-core processors}; do
  case $part in
    core|processors) ;;
    *) echo "there is no part '$part'; expected core or processors" >&2; exit 2 ;;
  esac
done

test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
venv=$(cd "$venv" && pwd)
PATH="$venv/bin:$PATH"          # the builds call cmake and ninja by name
echo "$torch" > "$venv/constraints.txt"
PIP_CONSTRAINT="$venv/constraints.txt"
export PATH PIP_CONSTRAINT

pip install -q "$torch" numpy
pip install -q setuptools wheel scikit-build-core nanobind==2.9.2 cmake ninja
pip install -q "transformers>=5.20"

core() {
  pip install -q grpcio-tools
  pip install -q --no-deps --no-build-isolation arctic-inference==0.3.0
  pip install -q numba
  python - <<'PY'
import sys
from arctic_inference.suffix_decoding import SuffixDecodingCache
assert "vllm" not in sys.modules
SuffixDecodingCache(max_tree_depth=24, max_cached_requests=0)
PY
}

processors() {
  if ! ls "$venv/wheels/llama_cpp_python-$llama"-*.whl > /dev/null 2>&1; then
    echo "building llama.cpp (10 minutes on 2 cores)"
    # No cache: pip would take what was built with other options, or for another machine.
    CMAKE_ARGS="-DGGML_NATIVE=ON -DGGML_OPENMP=ON -DGGML_CUDA=OFF -DLLAVA_BUILD=OFF" \
      pip wheel -q --no-cache-dir --no-deps --no-binary llama-cpp-python -w "$venv/wheels" "llama-cpp-python==$llama"
  fi
  pip install -q "$venv/wheels/llama_cpp_python-$llama"-*.whl
  python - <<'PY'
import llama_cpp
said = llama_cpp.llama_print_system_info().decode()
assert "OPENMP = 1" in said, said
PY
}

for part in ${*:-core processors}; do
  "$part"
done
python - <<'PY'
from importlib.metadata import PackageNotFoundError, version
for package in ("arctic-inference", "llama-cpp-python", "torch", "numpy", "transformers", "numba"):
    try:
        print(package, version(package))
    except PackageNotFoundError:
        print(package, "not installed")
PY

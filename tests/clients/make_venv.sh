#!/bin/sh
# Builds the virtual environment of the clients that foresay serve is tested with.
#   usage: make_venv.sh VENV        (python: $PYTHON, default python3)
#
# foresay itself does not live here: its server runs out of its own venv, and these programs know it
# by its port alone. Both need torch, which is pinned and comes first: any other version may pull
# gigabytes of CUDA.
set -eu
venv=${1:?usage: make_venv.sh VENV}

test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
echo torch==2.13.0 > "$venv/constraints.txt"
PIP_CONSTRAINT="$(cd "$venv" && pwd)/constraints.txt"
PATH="$(cd "$venv/bin" && pwd):$PATH"
export PATH PIP_CONSTRAINT

pip install -qq --disable-pip-version-check torch==2.13.0
pip install -qq --disable-pip-version-check 'lm-eval[api]==0.4.13' guidellm==0.8.1 pytest \
    instructor==1.17.0 langchain-openai==1.6.7 langchain-core==1.7.0 litellm==1.105.0 anthropic==2.10.0

# The agents are programs of Node.js. Where there is no npm, or nothing to be had by it, their tests are skipped.
if command -v npm >/dev/null; then
    timeout 300 npm install --silent --ignore-scripts --prefix "$venv/npm" @openai/codex@0.169.0 @anthropic-ai/claude-code@2.1.197 &&
        node "$venv/npm/node_modules/@anthropic-ai/claude-code/install.cjs" ||
        echo "npm did not install Codex and Claude Code; their tests are skipped"
fi

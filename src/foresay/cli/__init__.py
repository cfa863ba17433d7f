"""The command line: parse, call, print. Nothing is computed here.

root        the application, and what happens when a command fails
show        progress, fields, tables
waiting     progress of long work, on stderr
interrupts  Ctrl-C while results are printed
asking      options that say how answers are sampled
model       options of commands that run a model, and loading it
options     errors that name options
sources     where tokens were drafted from, in colours or brackets
demo        foresay demo
generate    foresay generate
serve       foresay serve
edge        foresay edge
edge_shown  an answer of an edge stream as it comes
replay      foresay replay
simulate    foresay simulate
tail        foresay tail
corpus      foresay corpus build, inspect, verify
lossless    foresay lossless
train       foresay train write, model, boost, eagle
bench       foresay bench drafters
bench_edge  foresay bench edge
doctor      foresay doctor
"""

from foresay.cli import (
    bench,
    bench_edge,
    corpus,
    demo,
    doctor,
    edge,
    generate,
    lossless,
    replay,
    serve,
    simulate,
    tail,
    train,
)
from foresay.cli.root import app, run

# Each module adds its commands to `app` when it is imported.
__all__ = [
    "app",
    "bench",
    "bench_edge",
    "corpus",
    "demo",
    "doctor",
    "edge",
    "generate",
    "lossless",
    "replay",
    "run",
    "serve",
    "simulate",
    "tail",
    "train",
]

"""The command line: parse, call, print. Nothing is computed here.

root      the application, and what happens when a command fails
show      progress, fields, tables
replay    foresay replay, foresay demo
corpus    foresay corpus build, inspect, verify
lossless  foresay lossless
doctor    foresay doctor
"""

from foresay.cli import corpus, doctor, lossless, replay
from foresay.cli.root import app, run

# Each module adds its commands to `app` when it is imported.
__all__ = ["app", "corpus", "doctor", "lossless", "replay", "run"]

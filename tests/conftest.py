"""One profile for all property tests: the same cases in every run, and no deadlines, because a busy
machine is not a bug. Set FORESAY_EXPLORE=1 to look for new cases.

Measured steps take the same time everywhere (`steady`).

Threads wait without spinning: on a busy machine they would wait for each other for ever. And
signals that whoever started the tests ignores (`nohup`, a background job) are not ignored by the
processes that the tests start."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from explore import EXPLORES

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported, after this
# Steady times are not for the cache of whoever runs the tests; tests of remembering ask for it.
os.environ.setdefault("FORESAY_REMEMBER", "0")
# Kernels for a GPU run in Triton's interpreter where there is none. Triton asks when it is
# imported, which transformers does.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

settings.register_profile(
    "foresay",
    deadline=None,
    derandomize=not EXPLORES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("foresay")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before all fixtures of a test. Tests without an engine do not import one for this."""
    if "foresay.engine.measure" in sys.modules:
        import_module("steady")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def pytest_collection_finish() -> None:
    """What is there by now stays to the end: the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # all of it is freed at the end of the process

"""A forked process does what one that Python starts does: the same words, the same end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forks
from lives import survivors

PROGRAMS = {
    "words": "import sys; print('out'); print('err', file=sys.stderr)",
    "arguments": "import sys; print(sys.argv, sys.path[0])",
    "folder and environment": "import os; print(os.getcwd(), os.environ['MINE'], len(os.environ))",
    "input": "print(input(), repr(__import__('sys').stdin.read()))",
    "name": "print(__name__, 'seen' in globals())\nseen = 1\ndef f(): return seen\nprint(f())",
    "status": "import sys; print('x', end=''); sys.exit(3)",
    "no status": "import sys; sys.exit()",
    "sentence": "import sys; sys.exit('it is wrong')",
    "killed": "import os; print('x', flush=True); os.kill(os.getpid(), 9)",
    "interrupted": "import signal; signal.raise_signal(signal.SIGINT)",
    "aborted": "import os; os.abort()",
    "signals": "import signal as s; print(*map(s.getsignal, (s.SIGINT, s.SIGCHLD, s.SIGPIPE)))",
    "a thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()",
    "at exit": "import atexit; atexit.register(print, 'last'); print('first')",
    "at exit after an error": "import atexit; atexit.register(print, 'last'); 1/0",
    "warning": "import warnings; warnings.warn('careful'); print('after')",
    "streams": "import sys\nfor s in (sys.stdin, sys.stdout, sys.stderr):\n"
    "  print(s.encoding, s.errors, s.line_buffering, s.fileno())",
    "descriptors": "import os; print(len(os.listdir('/proc/self/fd')))",
    "child": "import subprocess; print(subprocess.run(['sh', '-c', 'exit 4']).returncode)",
    "no torch": "import sys; print('torch' in sys.modules)",
}


def last_line(text: str) -> str:
    """A traceback names its files: only what went wrong is the same."""
    return text.splitlines()[-1] if "Traceback" in text else text


@pytest.mark.parametrize(
    ("name", "options"), [*((name, ()) for name in PROGRAMS), ("warning", ("-W", "error"))]
)
def test_a_program(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    arguments = [*options, "-c", PROGRAMS[name], "one", "two words"]
    environ = {**os.environ, "MINE": "yes", "OMP_NUM_THREADS": "1"}
    wanted = subprocess.run(
        [sys.executable, *arguments],
        input="line\nrest\n",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environ,
    )
    found = forks.run(
        *arguments, input="line\nrest\n", cwd=tmp_path, environ={"MINE": "yes"}, server=forks.LIGHT
    )
    assert (found.returncode, found.stdout) == (wanted.returncode, wanted.stdout)
    assert last_line(found.stderr) == last_line(wanted.stderr)


def test_a_module_and_a_script(tmp_path: Path) -> None:
    done = forks.run("-m", "foresay", "--version", server=forks.LIGHT)
    assert done.returncode == 0 and done.stdout.startswith("foresay 0.") and not done.stderr
    (tmp_path / "beside.py").write_text("word = 'beside'\n")
    script = tmp_path / "script.py"
    script.write_text("import sys, beside; print(__name__, __file__, beside.word, sys.argv[1:])\n")
    done = forks.run(script, "x", server=forks.LIGHT)
    assert done.stdout == f"__main__ {script} beside ['x']\n", done.stderr


def test_a_process_that_is_talked_to_and_ended() -> None:
    code = "import os, time; print(os.getsid(0), input(), flush=True); time.sleep(60)"
    with forks.start("-c", code) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{process.pid} hello\n"
        assert process.poll() is None and survivors(process.pid) == [process.pid]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(20) == ("", "")
        assert process.returncode == process.poll() == -signal.SIGTERM
        process.send_signal(signal.SIGTERM)  # nobody is there
    with forks.start("-c", code) as process:
        pass
    assert process.returncode == -signal.SIGKILL


def test_torch_is_there_and_works() -> None:
    code = "import sys; assert 'torch' in sys.modules; import torch\n"
    code += "print(torch.get_num_threads(), (torch.ones(300, 300) @ torch.ones(300, 1)).sum())"
    assert forks.run("-c", code).stdout == "1 tensor(90000.)\n"

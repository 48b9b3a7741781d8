"""Warm interpreters: what a script finds and how it ends is the same as after a cold start; nobody inside
gets hold of one; and whatever happens to it, runs go on.

Every script of the tables runs twice, in a session with warm interpreters and in one without. `how.py`, which
they import first, leaves word of how they were started, so that no comparison is one of cold with cold.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from probes import eventually, processes, until

from executor import BadRequestError, ExecResult, Executor, Grant, Session, Settings, tool
from executor.deps.layers import LayerStore
from executor.settings import load
from tests.conftest import RUNTIMES

MODULES = "asyncio,concurrent.futures,email.message,logging,multiprocessing,random,sqlite3,tempfile,uuid"
HOW = """
import os, sys
try:
    with open(os.path.dirname(__file__) + "/how", "x") as file:
        file.write("warm" if "email.message" in sys.modules else "cold")
except FileExistsError:
    pass
"""
ADDRESS = re.compile(r"0x[0-9a-f]+|\b1[0-9]{14}\b|run_[0-9a-f]{16}|\.bridge-[0-9a-f]+")


@dataclass(frozen=True)
class Case:
    """A script, how it is called, and whether it is to be started warm (None: it cannot tell)."""

    script: str | bytes = ""
    argv: tuple[str | bytes, ...] = ("python3", "s.py")
    files: dict[str, str | bytes] = field(default_factory=dict)
    stdin: str | None = None
    warm: bool | None = True
    cwd: str | None = None


STATE = r"""
import atexit, ctypes, gc, grp, json, os, posix, resource, signal, site, sys, threading, traceback, warnings
import __main__
def stream(s):
    raw = getattr(s.buffer, "raw", s.buffer)
    return [repr(s), s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.isatty(),
            s.seekable(), type(s.buffer).__name__, repr(raw), raw.name, raw.mode, raw.closefd, s.fileno()]
own = ("EXECUTOR_RUN_ID", "RUN_DIR", "SKILL_BRIDGE", "PATH", "PYTHONPATH")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "argv": [sys.argv, getattr(sys, "orig_argv", 0), sys.executable, sys._base_executable, sys.prefix],
    "path": sys.path, "flags": repr(sys.flags), "xoptions": sys._xoptions, "warnoptions": sys.warnoptions,
    "main": [[k, repr(v)] for k, v in sorted(vars(__main__).items()) if k.startswith("__")],
    "is main": sys.modules["__main__"] is __main__, "globals": globals() is vars(__main__),
    "annotations": globals().get("__annotations__"), "frames": sys._getframe().f_back is None,
    "stack": traceback.format_stack(), "streams": [stream(s) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace()],
    "last": [n for n in dir(sys) if n.startswith("last_")], "limit": sys.getrecursionlimit(),
    "environment": [[k, v] for k, v in os.environ.items() if k not in own], "order": list(os.environ),
    "posix": sorted(map(repr, set(posix.environ) ^ set(os.environb))),
    "cache": [sys.path_importer_cache.get(os.path.abspath(__file__), 1), sys.pycache_prefix],
    "cwd": os.getcwd(), "umask": os.umask(0o22), "parent": os.getppid(), "nice": os.nice(0),
    "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    "native": threading.get_native_id() == os.getpid(), "bytecode": sys.dont_write_bytecode,
    "signals": [str(signal.getsignal(n)) for n in sorted(signal.valid_signals())],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    # Without the two signals that libc keeps for itself, and takes with the first thread.
    "caught": [int(status[n], 16) & 0x7fffffff for n in ("SigBlk", "SigIgn", "SigCgt", "SigPnd")],
    "kernel": [status[n].strip() for n in ("Name", "Threads", "Seccomp", "NoNewPrivs", "CapEff", "Umask")],
    "threads": [threading.current_thread() is threading.main_thread(), threading.current_thread().name],
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    "limits": [resource.getrlimit(n) for n in range(16)], "affinity": sorted(os.sched_getaffinity(0)),
    "oom": open("/proc/self/oom_score_adj").read(), "dumpable": ctypes.CDLL(None).prctl(3),
    "comm": open("/proc/self/comm").read(), "exe": os.readlink("/proc/self/exe"),
    "mark": os.environb[b"EXECUTOR_RUN_ID"] in open("/proc/self/environ", "rb").read(),
    "site": [site.USER_BASE, site.USER_SITE, site.ENABLE_USER_SITE, site.PREFIXES],
    "warnings": [str(f) for f in warnings.filters], "gc": [gc.isenabled(), gc.get_threshold()],
    "groups": len(os.getgroups()), "children": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
}, indent=0, default=repr))
"""
CALLS = {
    "alone": ("python3", "s.py"),
    "words": ("python3", "s.py", "-x", "", "a b", b"\xff\xfe", "ä"),
    "dot": ("python3", "./s.py"),
    "below": ("python3", "sub/s.py"),
    "up": ("python3", "sub/../s.py"),
    "absolute": ("python3", "{}/s.py"),
    "link": ("python3", "link.py"),
    "not UTF-8": ("python3", b"\xe4\xff.py"),
    "space": ("python3", "a b.py"),
}
SCRIPTS = r"""
=== ends
print('x')
=== raises
def f():
    1/0
f()
=== chained
try:
    1/0
except Exception as e:
    raise KeyError('x') from e
=== in context
try:
    1/0
except Exception:
    {}['a']
=== group
raise ExceptionGroup('g', [ValueError(1), TypeError(2)])
=== in a thread
import threading
t = threading.Thread(target=lambda: 1/0, name='T')
t.start()
t.join()
=== stack
import traceback
def f():
    traceback.print_stack()
f()
=== stack of a thread
import threading
t = threading.Thread(target=lambda: __import__('traceback').print_stack(), name='T')
t.start()
t.join()
=== warning
import warnings
warnings.warn('one')
warnings.warn('two', stacklevel=2)
warnings.warn('three', DeprecationWarning)
=== warning as error
import warnings
warnings.simplefilter('error')
warnings.warn('x')
=== unraisable
class A:
    def __del__(self):
        1/0
a = A()
del a
b = A()
=== excepthook
import sys
sys.excepthook = lambda *a: print('hook', a[0].__name__)
1/0
=== failing excepthook
import sys
def hook(*a):
    raise KeyError(1)
sys.excepthook = hook
1/0
=== no traceback
import sys
sys.tracebacklimit = 0
1/0
=== recursion
import re
def f():
    f()
f()
=== syntax of an import
import bad
=== imports a sibling
import beside, os
print(beside.__file__, beside.__cached__, os.listdir('.'))
=== reads itself
import inspect
def f():
    'doc'
print(inspect.getsource(f), open(__file__).read()[:9])
=== reimports main
import __main__, importlib
print(__main__.__spec__, __main__.__loader__.path)
=== future
from beside import *
x: int = 1
print(__annotations__)
=== reads stdin
import sys
print(input('? '), sys.stdin.readline(), repr(sys.stdin.buffer.read()))
=== nothing to read
import sys
print(repr(sys.stdin.read()))
=== exit
import sys
sys.exit()
=== exit 0
import sys
sys.exit(0)
=== exit 3
import sys
sys.exit(3)
=== exit -1
import sys
sys.exit(-1)
=== exit 256
import sys
sys.exit(256)
=== exit 2**70
import sys
sys.exit(2**70)
=== exit text
import sys
sys.exit('no: \xe4')
=== exit of something
import sys
sys.exit((1, [2]))
=== exit in a thread
import threading
t = threading.Thread(target=lambda: __import__('sys').exit(3), name='T')
t.start()
t.join()
=== exit at once
import os
os._exit(7)
=== exit in exit
import atexit, sys
atexit.register(lambda: sys.exit(4))
sys.exit(3)
=== interrupt
raise KeyboardInterrupt
=== interrupt from outside
import os, signal
os.kill(os.getpid(), signal.SIGINT)
print('no')
=== interrupt and a hook
import atexit
atexit.register(print, 'bye')
raise KeyboardInterrupt('x')
=== interrupt that is caught
import sys
try:
    raise KeyboardInterrupt
except KeyboardInterrupt:
    sys.exit(5)
=== interrupt below
class K(KeyboardInterrupt): pass
raise K
=== handler
import os, signal
signal.signal(10, lambda *a: print(a[0], a[1].f_lineno))
os.kill(os.getpid(), 10)
=== alarm
import signal
signal.alarm(1)
signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.pause()
=== aborts
import os
os.abort()
=== at the end
import atexit, sys
class A:
    def __del__(self):
        print('del', flush=True)
a = A()
atexit.register(lambda: print('1', sys._getframe().f_back))
atexit.register(print, '2')
=== threads at the end
import threading, time
for d in (True, False):
    threading.Thread(target=lambda d=d: (time.sleep(0.1 + 9 * d), print(d)), daemon=d).start()
print('main')
=== closed stdout
import os
os.close(1)
print('x')
=== closed both
import os, sys
sys.stdout.close()
sys.stderr.close()
1/0
=== no reader
import os, sys
r, w = os.pipe()
os.close(r)
os.dup2(w, 1)
print('x')
=== raw output
import os, sys
os.write(1, b'\xff')
sys.stdout.buffer.write(b'\xfe')
print('\udcff')
=== bad output
print('\ud800')
=== asyncio
import asyncio, os, signal
async def main():
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.add_signal_handler(10, done.set_result, 1)
    os.kill(os.getpid(), 10)
    print(await done)
    p = await asyncio.create_subprocess_exec('echo', 'hello')
    print(await p.wait())
asyncio.run(main())
=== subprocess
import subprocess, sys
child = '''
import os, sys
print(sys.argv, os.getppid() > 1, sorted(map(int, os.listdir("/proc/self/fd"))))
sys.exit(3)
'''
print(subprocess.run([sys.executable, '-c', child], capture_output=True))
=== fork
import os, threading
if not os.fork():
    print('child', threading.main_thread().name, flush=True)
    raise SystemExit(3)
print(os.wait()[1])
=== exec
import os
os.execvp('python3', ['python3', '-c', 'import sys; print(sys.argv, sys.orig_argv)'])
=== becomes a session's leader
import os
os.setsid()
=== processes, forked
import multiprocessing as m
def f(x):
    return x * x, m.parent_process().name
if __name__ == '__main__':
    with m.get_context('fork').Pool(2) as p:
        print(p.map(f, range(3)))
=== processes, spawned
import multiprocessing as m, os
def f():
    print(__name__, os.getcwd(), flush=True)
if __name__ == '__main__':
    p = m.get_context('spawn').Process(target=f)
    p.start()
    p.join()
    print(p.exitcode)
=== ctypes
import ctypes
print(ctypes.pythonapi.Py_IsInitialized(), ctypes.c_int(-1), ctypes.sizeof(ctypes.c_long))
=== pickle
import pickle
class A: pass
print(type(pickle.loads(pickle.dumps(A()))) is A)
=== logging
import logging
logging.warning('x')
r = logging.makeLogRecord({})
print(logging.LogRecord('n', 10, '', 1, '', (), None).relativeCreated < 5000)
=== modules
import sys
print([n for n in ('ctypes', '_ctypes', 'warm') if n in sys.modules])
=== getframe
import sys
try:
    sys._getframe(1)
except ValueError as e:
    print(e)
=== faulthandler
import faulthandler, os
faulthandler.enable()
os.kill(os.getpid(), 11)
=== profile
import cProfile
p = cProfile.Profile()
p.runcall(len, [])
print(len(p.getstats()))
=== monitors
import sys
sys.settrace(lambda f, e, a: print(e, f.f_code.co_name))
len([])
(lambda: 0)()
sys.settrace(None)
=== pool that is not closed
import multiprocessing
if __name__ == '__main__':
    pool = multiprocessing.Pool(1)
    print(pool.map(abs, [-1]))
=== cycle through the globals
class A:
    def __del__(self): print('del')
a = A()
a.all = globals()
=== larger stack
import json, resource, sys
resource.setrlimit(resource.RLIMIT_STACK, (256 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
sys.setrecursionlimit(10**6)
print(len(json.loads('[' * 40000 + ']' * 40000)))
"""
STATEMENTS = {
    name: text for name, _, text in (part.partition("\n") for part in SCRIPTS.split("\n=== ")[1:])
} | {
    f"dies of {name}": f"import os, signal\nos.kill(os.getpid(), signal.{name})"
    for name in ("SIGTERM", "SIGKILL", "SIGSEGV", "SIGHUP", "SIGUSR1", "SIGPIPE", "SIGXFSZ", "SIGCHLD")
}
ZIP = BytesIO()
with zipfile.ZipFile(ZIP, "w") as _archive:
    _archive.writestr("__main__.py", "import sys\nprint('zip', sys.argv, sys.path[0], __name__, __spec__)")
ITSELF = "import how\nprint(__file__)"
IN_A_FOLDER = {"folder.py/__main__.py": ITSELF, "folder.py/how.py": HOW}
CASES: dict[str, Case] = {
    **{f"state: {name}": Case(STATE, argv) for name, argv in CALLS.items()},
    "state: elsewhere": Case(STATE, ("python3", "../s.py"), cwd="sub"),
    "state: stdin": Case(STATE, stdin="x"),
    **{name: Case(text) for name, text in STATEMENTS.items()},
    "stdin": Case(STATEMENTS["reads stdin"], stdin="a\nb\nc"),
    # Without the line of `how`, whose import would fail or come in the wrong place.
    "empty": Case(b"", warm=None),
    "syntax": Case(b"x = (\nprint(1)\n", warm=None),
    "indentation": Case(b"if 1:\nx\n", warm=None),
    "tabs": Case(b"if 1:\n\tx = 1\n        y = 2\n", warm=None),
    "NUL": Case(b"x = 1\0\n", warm=None),
    "argument too long": Case("print(1)", ("python3", "s.py", "x" * 140_000), warm=None),
    "not UTF-8": Case(b"print('\xff')\n", warm=None),
    "BOM": Case(b"\xef\xbb\xbfprint(ascii('\xc3\xa4'))\n", warm=None),
    "cookie": Case(b"#!/usr/bin/env python3\n# -*- coding: latin-1 -*-\nprint(ascii('\xe4'))\n", warm=None),
    "wrong cookie": Case(b"# coding: nonsense\nprint(1)\n", warm=None),
    "line ends": Case(b"import how\r\nprint(1)\rprint(2)\r\n1/0", warm=None),
    "docstring": Case(b"'''doc'''\nprint(__doc__)\nimport how\n"),
    "assertion": Case("assert False, 'x'"),
    # A cold start, decided in process 1 or by the forked process.
    "missing": Case(argv=("python3", "none.py"), warm=None),
    "folder": Case(argv=("python3", "folder.py"), files=IN_A_FOLDER, warm=False),
    "empty folder": Case(argv=("python3", "void.py"), files={"void.py/x": ""}, warm=None),
    "archive": Case(argv=("python3", "zip.py"), files={"zip.py": ZIP.getvalue()}, warm=None),
    "option": Case("import sys\nprint(sys.flags)", ("python3", "-O", "s.py"), warm=False),
    "module": Case("import sys\nprint(sys.argv)", ("python3", "-m", "s"), warm=False),
    "code": Case(argv=("python3", "-c", "import how, sys\nprint(sys.argv)"), warm=False),
    "other name": Case("import sys\nprint(sys.executable)", ("/usr/bin/python3", "s.py"), warm=None),
    "no ending": Case(argv=("python3", "script"), files={"script": ITSELF}, warm=False),
    "shadowed": Case("import sqlite3\nprint(sqlite3.__file__)", files={"sqlite3.py": "x = 1"}, warm=False),
    "shadowed by a package": Case("import uuid", files={"uuid/__init__.py": "print(__file__)"}, warm=False),
}  # fmt: skip


NUMBERS = {name: str(number) for number, name in enumerate(CASES)}
NOT_UTF8 = b"\xe4\xff.py".decode("utf-8", "surrogateescape")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each case, with its script under several names."""
    made = tmp_path_factory.mktemp("cases")
    for name, case in CASES.items():
        script = case.script if isinstance(case.script, bytes) else ("import how\n" + case.script).encode()
        files: dict[str, bytes | str] = dict.fromkeys(("s.py", "sub/s.py", "a b.py", NOT_UTF8), script)
        files |= {"how.py": HOW, "sub/how.py": HOW, "beside.py": "x = 1\n", "bad.py": "def f(:\n"}
        for path, content in {**files, **case.files}.items():
            where = made / NUMBERS[name] / path
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_bytes(content if isinstance(content, bytes) else content.encode())
        (made / NUMBERS[name] / "link.py").symlink_to("sub/s.py")
    return made


@pytest.fixture(scope="module")
def cold(executor: Executor, folder: Path) -> Iterator[Session]:
    """A session without warm interpreters."""
    with executor.session() as opened:
        opened.put("cases", folder)
        yield opened


@pytest.fixture(scope="module")
def warm(executor: Executor, folder: Path) -> Iterator[Session]:
    """A session with one, which is ready."""
    with executor.session(warm=[f"python:{MODULES}"]) as opened:
        opened.put("cases", folder)
        wait_for(opened)
        yield opened


def how(session: Session, **options: Any) -> str:
    """How a script is started there now."""
    session.remove("work/how")
    session.put("work/how.py", HOW)
    assert session.exec(["python3", "work/how.py"], **options).status == "ok"
    return session.read("work/how").decode()


def wait_for(session: Session, wanted: str = "warm", **options: Any) -> None:
    """Until scripts are started that way."""
    assert eventually(lambda: how(session, **options) == wanted)


def run(session: Session, name: str) -> tuple[str, dict[str, Any], list[str]]:
    """How a case was started, how it ended and what it left."""
    case, folder = CASES[name], f"cases/{NUMBERS[name]}"
    cwd = f"{folder}/{case.cwd}" if case.cwd else folder
    argv = [
        word.replace("{}", f"/workspace/{folder}") if isinstance(word, str) else word for word in case.argv
    ]
    result = session.exec(argv, stdin=case.stdin, cwd=cwd)
    listed = session.list_files(folder, recursive=True)
    was = next((file.path for file in listed if file.name.rpartition("/")[2] == "how"), None)
    left = sorted(file.name for file in listed if file.path != was)
    return session.read(was).decode() if was else "", told(result), left


def told(result: ExecResult) -> dict[str, Any]:
    """What is to be the same, without addresses and names that differ from one cold run to the next."""
    fields = ("status", "exit_code", "signal", "stdout", "stderr", "limits_hit", "warnings")
    return {name: _plain(getattr(result, name)) for name in fields}


def _plain(value: Any) -> Any:
    return ADDRESS.sub("…", value) if isinstance(value, str) else value


# What the ordinary run tries, here and (the first few) with each other runtime; `make soak` tries all of it.
FEW = ("state: words", "chained", "stack", "interrupt", "exit text", "at the end", "asyncio", "shadowed")
MORE = (
    *(
        "state: link",
        "state: stdin",
        "in a thread",
        "warning",
        "recursion",
        "exit 2**70",
        "handler",
        "ctypes",
    ),
    *("interrupt that is caught", "dies of SIGPIPE", "closed stdout", "subprocess", "processes, forked"),
    *("pool that is not closed", "cycle through the globals", "larger stack", "argument too long"),
    *("logging", "stdin", "syntax", "not UTF-8", "missing", "folder", "archive"),
)
LONG = bool(os.environ.get("EXECUTOR_SOAK"))
# What does not differ between runtimes; on all of them in the long form.
once = pytest.mark.parametrize("runtime", RUNTIMES if LONG else RUNTIMES[:1], indirect=True, scope="session")


@pytest.mark.parametrize("name", FEW)
def test_a_script_finds_and_ends_as_after_a_cold_start(name: str, cold: Session, warm: Session) -> None:
    compare(name, cold, warm)


@once
@pytest.mark.parametrize("name", [name for name in CASES if name in MORE or LONG])
def test_many_scripts_do(name: str, cold: Session, warm: Session) -> None:
    compare(name, cold, warm)


def compare(name: str, cold: Session, warm: Session) -> None:
    case = CASES[name]
    with ThreadPoolExecutor(2) as both:
        (was, *ended), (_, *expected) = both.map(run, (warm, cold), (name, name))
    assert ended == expected
    assert case.warm is None or was == ("warm" if case.warm else "cold")


# -- what only shows over more than one run -----------------------------------------------------------


def warnings_of(result: ExecResult) -> list[str]:
    return [warning for warning in result.warnings if "warm interpreter" in warning]


def zygotes(session: Session) -> list[int]:
    """Their pids inside."""
    return [process.pid for process in processes(session) if "hexversion" in process.line]


@once
def test_nothing_random_comes_twice(warm: Session) -> None:
    script = """
import how, multiprocessing, os, random, tempfile, uuid
print(random.random(), uuid.uuid4(), uuid.uuid1(), next(tempfile._get_candidate_names()), os.urandom(8).hex(),
    multiprocessing.current_process().authkey.hex(), os.getpid(), random.SystemRandom().random())
"""
    warm.put("work/draws.py", script)
    drawn = [warm.exec(["python3", "work/draws.py"]).stdout.split() for _ in range(3)]
    assert [len(set(column)) for column in zip(*drawn, strict=True)] == [3] * 8
    assert how(warm) == "warm"


@once
@pytest.mark.parametrize(
    ("code", "status"),
    [("print('x')\nimport os\nos.close(1)", 120), ("import os\nos.write(1, b'a')\nprint('b')", 0)],
)
def test_a_buffer_that_cannot_be_written_is_an_error_at_the_end(
    cold: Session, warm: Session, code: str, status: int
) -> None:
    env = {"PYTHONUNBUFFERED": ""}
    wait_for(warm, env=env)
    for session in (cold, warm):
        session.put("work/buffered.py", code)
    ends = [told(session.exec(["python3", "work/buffered.py"], env=env)) for session in (cold, warm)]
    assert ends[0] == ends[1]
    assert ends[0]["exit_code"] == status


@once
def test_deadlines_kills_signals_and_streams(warm: Session) -> None:
    warm.put("work/lives.py", "import how\nprint('up')\nfor line in iter(input, 'end'):\n    print(line)\n")
    run = warm.start(["python3", "work/lives.py"])
    until(run, "up")
    run.write("one\n")
    until(run, "one")
    run.send_signal(2)
    ended = run.wait(10)
    assert (ended.signal, ended.stderr.splitlines()[-1]) == (2, "KeyboardInterrupt")
    run = warm.start(["python3", "work/lives.py"])
    until(run, "up")
    assert run.kill().status == "killed"
    for number in (15, 2, 9):  # while it is handed over
        run = warm.start(["python3", "work/lives.py"])
        run.send_signal(number)
        assert run.wait(10).signal == number
    run = warm.start(["python3", "work/lives.py"])
    assert (run.kill().signal, run.kill().status) == (15, "killed")  # as of one that has begun
    warm.put("work/sleeps.py", "import how, time\nprint('up')\ntime.sleep(60)")
    late = warm.exec(["python3", "work/sleeps.py"], timeout=0.5)
    assert (late.status, late.stdout, late.exit_code) == ("timeout", "up\n", 124)
    assert how(warm) == "warm"


def test_scripts_and_code_with_a_bridge(executor: Executor, skills_root: Path) -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    folder = skills_root / "warmed" / "scripts"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / "SKILL.md").write_text("---\nname: warmed\ndescription: Adds. Use to test.\n---\nx\n")
    add_it = """
import sys
def run(input, ctx):
    return ["email.message" in sys.modules, ctx.tools.add(a=1, b=2), sys.path[:2]]
"""
    waits = """
import os, time
def run(input, ctx):
    print("up")
    while not os.path.exists("/workspace/work/go"):
        time.sleep(0.02)
    return ctx.tools.add(a=1, b=1)
"""
    (folder / "add.py").write_text(add_it)
    (folder / "waits.py").write_text(waits)
    grant = Grant(tools=[add])
    with executor.session(warm=["python:email.message"]) as session:
        found = eventually(
            lambda: (r := session.script("warmed", "scripts/add.py", grant=grant)).result[0] and r
        )
        assert found.result[1] == 3
        assert found.result[2][0] == "/skills/warmed/scripts"
        assert re.fullmatch(r"/tmp/\.bridge-[0-9a-f]+/python", found.result[2][1])
        assert found.tool_calls[0].ok
        code = "import sys\n['email.message' in sys.modules, await add(a=2, b=3)]"
        assert session.execute_code(code, grant=grant).result == [True, 5]
        # Another warm run of the session finds the socket and the token, and is not let in.
        thief = """
import glob, os, socket, struct, sys
(d,) = glob.glob("/tmp/.bridge-*")
call = b'{"method":"tool.call","params":{"name":"add","input":{"a":6,"b":6}}}'
s = socket.socket(socket.AF_UNIX)
s.connect(d + "/s")
try:
    s.sendall(open(d + "/token", "rb").read() + struct.pack(">BII", 1, 1, len(call)) + call)
    print('email.message' in sys.modules, s.recv(100))
except OSError:
    print('email.message' in sys.modules, b"")
"""
        session.put("work/thief.py", thief)
        victim = session.start_script("warmed", "scripts/waits.py", grant=grant)
        until(victim, "up")
        assert session.exec(["python3", "work/thief.py"]).stdout == "True b''\n"
        session.put("work/go", "")
        assert victim.wait(20).result == 2


@once
def test_another_environment_gets_another_one(executor: Executor) -> None:
    """Its own as soon as there is room, at most three; none at all with what it could not take over."""
    with executor.session(warm=["python:email.message"]) as session:
        wait_for(session)
        assert how(session, env={"A": "1"}) == "cold"
        wait_for(session, env={"A": "1"})
        wait_for(session, env={"A": "2"})
        assert how(session, env={"A": "3"}) == "cold"  # there is no room, and it may be the only time
        assert how(session, env={"A": "2"}) == "warm"
        wait_for(session, env={"A": "3"})
        assert len(zygotes(session)) == 3
        for env in ({"PYTHONTRACEMALLOC": "1"}, {"LD_PRELOAD": "/none"}, {"PYTHONPATH": "/workspace"}):
            assert [how(session, env=env) for _ in range(3)] == ["cold"] * 3
        # What Python finds in a home is a cold start's affair.
        wait_for(session, env={"A": "2"})
        session.exec("mkdir -p $(python3 -m site --user-site)")
        assert how(session, env={"A": "2"}) == "cold"
        session.exec("rm -r $(python3 -m site --user-site)")
        assert how(session, env={"A": "2"}) == "warm"


@once
@pytest.mark.parametrize(
    ("modules", "why"),
    [
        ("no_such_module", "No module named"),
        ("email.message,this", "writes output: The Zen"),
    ],
)
def test_what_cannot_be_imported_is_told_once_and_runs_go_on(
    executor: Executor, modules: str, why: str
) -> None:
    with executor.session(warm=[f"python:{modules}"]) as session:
        session.put("how.py", HOW)
        told: list[str] = []
        assert eventually(lambda: told.extend(warnings_of(session.exec(["python3", "how.py"]))) or told)
        assert why in told[0]
        assert modules in told[0]
        assert [warnings_of(session.exec(["python3", "how.py"])) for _ in range(3)] == [[]] * 3
        assert how(session) == "cold"


@once
def test_a_layer_of_dependencies_has_its_own(runtime: str) -> None:
    """What only the layer has is imported from there, though the image's own Python has none of it."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="executor-layers-"))
    try:
        folder.chmod(0o755)
        store = LayerStore(folder)
        store.prepare()
        layer = store.folder / "0f"
        (layer / "bin").mkdir(parents=True)
        (layer / "bin" / "python3").symlink_to("/usr/bin/python3")
        (layer / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
        with Executor(runtime=runtime, settings=Settings(layers_dir=str(folder))) as executor:
            version = (
                executor.session().exec("python3 -c 'import sys; print(sys.version[:4])'").stdout.strip()
            )
            packages = layer / f"lib/python{version}/site-packages"
            packages.mkdir(parents=True)
            (packages / "shapes.py").write_text(
                "import email.message, os\nhome = os.path.expanduser('~')\n"
                "seen = [name for name in os.environ if '/tmp' in os.environ[name]]\n"
            )
            with executor.session(warm=["python:shapes"]) as session:
                session.put(
                    "a.py", "import shapes, sys\nprint(shapes.__file__, sys.prefix, sys.executable)\n"
                )
                env = {"PATH": "/opt/layers/0f/bin:/usr/bin"}
                first = session.exec(["python3", "a.py"], env=env)
                wait_for(session, env=env)
                assert session.exec(["python3", "a.py"], env=env).stdout == first.stdout
                assert first.stdout.startswith(f"/opt/layers/0f/lib/python{version}/site-packages/shapes.py")
                assert how(session) == "cold"
                # While it imports, there is nothing that scripts can write: neither a home nor its likes.
                session.put("b.py", "import shapes\nprint(shapes.home, shapes.seen)\n")
                assert session.exec(["python3", "b.py"], env=env).stdout == "/nonexistent []\n"
                assert (
                    session.exec(["python3", "b.py"]).status == "error"
                )  # the control: not without the layer
    finally:
        shutil.rmtree(folder)


# -- hostile scripts ----------------------------------------------------------------------------------

FIND = """
import os, signal, sys
def zygote():
    for name in filter(str.isdigit, os.listdir("/proc")):
        if b"hexversion" in open(f"/proc/{name}/cmdline", "rb").read() and int(name) != os.getppid():
            return int(name)
"""
REACH = (
    FIND
    + """
import ctypes, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def reach(pid):
    found = {}
    for name, mode in (("mem", "rb"), ("mem", "r+b"), ("environ", "rb"), ("maps", "rb"), ("auxv", "rb")):
        try:
            with open(f"/proc/{pid}/{name}", mode, 0) as file:
                found[name + mode] = name == "mem" or len(file.read(9)) > 0
        except OSError:
            found[name + mode] = False
    for name in ("fd/0", "exe", "cwd"):
        try:
            found[name] = bool(os.readlink(f"/proc/{pid}/{name}"))
        except OSError:
            found[name] = False
    found["ptrace"] = libc.ptrace(16, pid, 0, 0) == 0
    return found
child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True); input()"], stdin=-1, stdout=-1)
child.stdout.readline()
print(reach(zygote()), reach(child.pid), reach(os.getpid()), sep="\\n")
child.kill()
"""
)


@pytest.fixture(scope="module")
def attacked(executor: Executor) -> Iterator[Session]:
    """A session with one warm interpreter, which is ready; it may be lost."""
    with executor.session(warm=["python:email.message"]) as opened:
        wait_for(opened)
        yield opened


def test_no_script_gets_into_it(attacked: Session) -> None:
    """The probe finds its own child, and itself, open in each way but ptrace, which no process has."""
    attacked.put("work/reach.py", REACH)
    result = attacked.exec(["python3", "work/reach.py"])
    assert result.status == "ok", result
    one, child, itself = map(ast.literal_eval, result.stdout.splitlines())
    assert set(one.values()) == {False}
    for control in (child, itself):
        assert {name for name, reached in control.items() if not reached} == {"ptrace"}


@once
def test_what_a_run_leaves_is_ended_around_it(attacked: Session) -> None:
    """Also what hides its descent and executes nothing: it is known by its run's mark; another's lives."""
    daemon = """
import how, os, sys, time
read, write = os.pipe()
if not os.fork():
    os.setsid()
    if not os.fork():
        os.write(write, b"%d" % os.getpid())
        os.closerange(0, 99)
        time.sleep(4321)
    os._exit(0)
os.wait()
pid = int(os.read(read, 20))
print(pid, flush=True)
input()
try:
    os.kill(pid, 0)
    print("alive")
except OSError:
    print("gone")
"""
    attacked.put("work/daemon.py", daemon)
    other = attacked.start(["python3", "work/daemon.py"])
    until(other, "\n")
    result = attacked.exec(["python3", "work/daemon.py"], stdin="\n")
    assert (result.stdout.split()[1], result.killed_descendants) == ("alive", 1)
    other.write("\n")
    ended = other.wait(10)
    assert (ended.stdout.split()[1], ended.killed_descendants) == ("alive", 1)
    assert len(processes(attacked)) == len(zygotes(attacked)) == 1
    assert how(attacked) == "warm"


@once
def test_a_flood_of_processes_only_ends_itself(attacked: Session) -> None:
    flood = """
import how, os, time
n = 0
try:
    while os.fork():
        n += 1
except OSError:
    print(n, flush=True)
    os._exit(0)
time.sleep(4321)
"""
    attacked.put("work/flood.py", flood)
    result = attacked.exec(["python3", "work/flood.py"], timeout=60)
    assert int(result.stdout) > 50
    assert result.killed_descendants == int(result.stdout)
    assert how(attacked) == "warm"


@once
def test_one_that_stands_still_is_replaced(attacked: Session) -> None:
    attacked.put("work/stop.py", FIND + "os.kill(zygote(), signal.SIGSTOP)")
    assert attacked.exec(["python3", "work/stop.py"]).status == "ok"
    attacked.put("work/x.py", "print('x' * 100_000)")
    result = attacked.exec(["python3", "work/x.py"])
    assert (result.status, result.stdout_bytes) == ("ok", 100_001)
    wait_for(attacked)
    # What was sent to a run meanwhile reaches it when it starts cold.
    assert attacked.exec(["python3", "work/stop.py"]).status == "ok"
    attacked.put("work/sleeps.py", "import time\ntime.sleep(60)")
    run = attacked.start(["python3", "work/sleeps.py"])
    run.send_signal(15)
    assert run.wait(20).signal == 15
    wait_for(attacked)


@once
def test_one_that_is_killed_is_started_again_a_few_times(attacked: Session) -> None:
    attacked.put("work/kill.py", FIND + "import how\nos.kill(zygote(), signal.SIGKILL)\nprint('x')")
    told: list[str] = []
    while zygotes(attacked):
        wait_for(attacked)
        result = attacked.exec(["python3", "work/kill.py"])
        assert (result.status, result.stdout) == ("ok", "x\n")
        told += warnings_of(result)
        assert how(attacked) == "cold"
    told += warnings_of(attacked.exec(["true"]))
    assert [warning.rpartition(": ")[2] for warning in told] == ["it was ended 3 times"]
    assert [how(attacked) for _ in range(3)] == ["cold"] * 3
    assert zygotes(attacked) == []


@once
def test_what_names_no_modules_is_refused(executor: Executor) -> None:
    wrong: list[Any] = [
        "numpy",
        "ruby:x",
        "python:",
        "python:a b",
        "python:os;x",
        "python:a..b",
        "python:-c",
        5,
    ]
    for entry in [*wrong, "python:" + ",".join(f"m{number}" for number in range(33)), "python:" + "x" * 201]:
        with pytest.raises(BadRequestError, match="warm"):
            executor.session(warm=[entry])


def test_the_setting_is_a_list() -> None:
    settings = load(environ={"EXECUTOR_WARM": "python:numpy,pandas python:json"})
    assert settings.warm == ("python:numpy,pandas", "python:json")


@once
def test_an_open_session_keeps_the_ones_that_it_has(executor: Executor, warm: Session) -> None:
    assert executor.session(warm.id).warm == warm.warm == tuple(MODULES.split(","))
    with pytest.raises(BadRequestError, match="other warm interpreters"):
        executor.session(warm.id, warm=["python:json"])

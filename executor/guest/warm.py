"""Warm interpreters: Pythons that have imported what scripts import, and are forked for a run.

A warm interpreter (a zygote) is a process beside the runs, started as a run's Python would be: same program,
same variables, same limits. It imports its modules and waits on a socket that has no name. For a run that it
can serve it gets the run's descriptors, folder, arguments and variables, and forks twice, so that the run's
process is a child of process 1 like any other. That process waits until process 1 knows it, by what the
kernel says of who wrote, and then the interpreter's own function runs the script: the one that
`python3 script.py` calls, with no frame of ours below it.

Where that would not be the same as a cold start, there is a cold start: this file decides by what it is asked
(`Warm.find`), the forked process by what it finds (then it executes the program anew, in its place).

Rules
 1. A zygote imports only from where no script can write, and runs nothing of a script's. It is undumpable.
 2. It belongs to no run: what a run leaves is killed around it.
 3. It is never waited for: one that is gone, not ready, or silent for PATIENCE means a cold start. It is
    started again at most STARTS times.
 4. There are at most MOST, one for each program, set of modules and environment. What is asked for first gets
    one while there is room; later only what is asked for again takes the place of the one whose use is
    longest ago.
"""

from __future__ import annotations

import marshal
import os
import select
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    Pairs = List[Tuple[bytes, bytes]]

MOST = 3
STARTS = 3
REMEMBERED = 16  # environments
PATIENCE = 2.0  # seconds from a hand-over to the process's first word
IMPORTING = 120.0  # seconds that its imports may take
LONGEST_STRING, MOST_STRINGS = 128 * 1024 - 16, 1 << 20  # bytes of what a kernel executes for certain
SAID = 500  # characters of what is told of a failure
# From 3.13 on, a process that a thread forked cannot end its interpreter: it takes the lost main thread's
# state, which was freed, for its own.
TOO_NEW = (3, 13)
NAMES_OF_PYTHON = (b"python", b"python3")
READ_ONLY = (b"/usr/", b"/bin/", b"/lib/", b"/opt/layers/", b"/run/executor/bin/")
# Variables of Python that mean the same to a process that is forked later. With any other it starts cold.
SHARED_OPTIONS = (
    b"PYTHONDONTWRITEBYTECODE",
    b"PYTHONHASHSEED",
    b"PYTHONIOENCODING",
    b"PYTHONOPTIMIZE",
    b"PYTHONPATH",
    b"PYTHONPYCACHEPREFIX",
    b"PYTHONUNBUFFERED",
    b"PYTHONUTF8",
)
# Variables that are a run's own, which no module looks at while it is imported.
OF_THE_RUN = (
    b"CONTEXT_JSON",
    b"EXECUTOR_RUN_ID",
    b"INPUT_JSON",
    b"NODE_OPTIONS",
    b"NODE_PATH",
    b"RUN_DIR",
    b"SKILL_BRIDGE",
    b"SKILL_DIR",
    b"SKILL_NAME",
    b"SKILL_SCRIPT_ASYNC",
    b"SKILL_SCRIPT_CODE",
    b"SKILL_SCRIPT_COMMONJS",
)
RUN_ID = b"EXECUTOR_RUN_ID"
NO_HOME = b"/nonexistent"  # while it starts: a script can put modules, and code, into its own
# The first words of a zygote: what to do comes as the first message on its stdin, for this very Python.
BOOT = (
    "exec(*__import__('marshal').loads("
    "__import__('posix').read(0,1<<20)if __import__('sys').hexversion==%d else b''))"
)
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of SCM_CREDENTIALS
SO_PASSCRED, SCM_RIGHTS, SCM_CREDENTIALS = 16, 1, 2


# -- inside a zygote ----------------------------------------------------------------------------------


def zygote() -> None:
    """The whole life of a zygote; its code is sent there, so it uses nothing from outside of itself.

    A script that is run from a function of Python finds that function in stacks, in warnings and in how deep
    it may recurse. So what comes after the fork is a chain of iterators made
    of C: `serve` waits, and in a run's process returns the arguments of the interpreter's own function; for
    what that returned, `Status` has the exit status, which is the argument of `Py_Exit`. The chain is driven
    by a thread, below which there is no frame either. A fork of that thread is a process of which it is the
    main thread: that is the zygote.
    """
    import sys

    cold = set(sys.modules)
    import _signal  # type: ignore[import-not-found]
    import _socket
    import _thread
    import ctypes
    import gc
    import itertools
    import marshal
    import os
    import posix
    import time

    given = globals()
    api, libc = ctypes.pythonapi, ctypes.CDLL(None)
    libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    libc.fopen.restype = libc.getenv.restype = ctypes.c_void_p
    libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    die_of = ctypes.cast(getattr(libc, "raise"), ctypes.c_void_p)
    run_file = api.PyRun_AnyFileExFlags
    run_file.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    api.PyImport_GetImporter.argtypes = [ctypes.py_object]
    api.PyImport_GetImporter.restype = ctypes.py_object
    run_id = libc.getenv(b"EXECUTOR_RUN_ID")  # where /proc/<pid>/environ shows it
    control = _socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    del sys.path[0]  # the working folder, as for every `python3 -c`
    taken: Any = set()  # names of modules that a cold start would look for in the script's folder
    for name in set(sys.modules) - cold:  # they are ours: a script imports its own
        del sys.modules[name]

    def set_environment(pairs: Any) -> None:
        os.environ.clear()
        for name, value in pairs:
            os.environb[name] = value
        posix.environ.clear()
        posix.environ.update(pairs)

    def load() -> str:
        """Import the modules; what is wrong, if anything is."""
        # What scripts can write is not there: a module may read code from its folder in the home.
        set_environment(
            [
                (name, b"/nonexistent" if name == b"HOME" else value)
                for name, value in given["environment"]
                if (
                    not name.startswith(b"XDG_")
                    and not value.startswith((b"/tmp", b"/workspace", b"/skills"))
                )
                or name == b"HOME"
            ]
        )
        sys.pycache_prefix = None  # the one of runs is a folder that they write to
        for name in given["modules"]:
            try:
                __import__(name)
            except BaseException as error:
                return "importing %s failed: %s: %s" % (name, type(error).__name__, error)
        sys.stdout.flush()
        sys.stderr.flush()
        if os.fstat(1).st_size:
            said = os.pread(1, 200, 0).decode("utf-8", "replace")
            return "importing %s writes output: %s" % (", ".join(given["modules"]), said)
        if len(sys._current_frames()) > 1:
            return "importing %s starts threads" % ", ".join(given["modules"])
        at_start = {name.partition(".")[0] for name in cold}
        taken.update({name.partition(".")[0] for name in sys.modules} - at_start)
        gc.collect()
        gc.freeze()
        # The frame that runs this holds on to its module for ever, and what a script leaves there is to be
        # freed, cycles too: so it gets another one, which is not frozen.
        main = type(sys)("__main__")
        main.__dict__.clear()
        main.__dict__.update(sys.modules["__main__"].__dict__)
        sys.modules["__main__"] = main
        return ""

    def start() -> Any:
        """In the first process: become the zygote, and do not come back there."""
        if os.fork():
            while True:
                time.sleep(3600)  # until the zygote ends it
        _thread.stack_size(0)  # those of scripts are as usual
        control.send(b".")
        if not control.recv(1):
            os._exit(0)
        os.kill(os.getppid(), 9)
        control.send(load().encode("utf-8", "backslashreplace")[:4096] or b".")
        return serve()

    def serve() -> Any:
        """Wait for runs and fork for each; in a run's process, what `run_file` is to be called with."""
        while True:
            _, extra, _, _ = control.recvmsg(1, 256, _socket.MSG_CMSG_CLOEXEC)
            if not extra:
                os._exit(0)
            numbers = memoryview(extra[0][2]).cast("i").tolist()
            try:
                child = os.fork()
            except OSError:
                child = -1
            if not child:
                try:
                    return begin(*numbers)
                except BaseException:
                    os._exit(125)
            for number in numbers:
                os.close(number)
            if child > 0:
                os.waitpid(child, 0)

    def begin(word: int, order: int, folder: int, *stdio: int) -> Any:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        control.close()
        program, argv, pairs, extra_path = marshal.loads(  # noqa: S302
            os.pread(order, os.fstat(order).st_size, 0)
        )
        own = dict(pairs)[b"EXECUTOR_RUN_ID"]
        ctypes.memmove(run_id, own, len(own))
        libc.prctl(4, 1, 0, 0, 0)  # from here on it is a script's process like any other
        if os.fork():
            os._exit(0)
        os.setsid()
        for target, number in enumerate(stdio):
            os.dup2(number, target)
        os.fchdir(folder)
        for number in (order, folder, *stdio):
            os.close(number)
        while os.getppid() != 1:
            time.sleep(0.0001)
        os.write(word, b".")
        if not os.read(word, 1):
            os._exit(0)
        os.close(word)
        set_environment(pairs)
        try:
            found = prepare([os.fsdecode(item) for item in argv], extra_path)
        except Exception:
            found = None
        if found is None:
            for number in (_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ):
                _signal.signal(number, _signal.SIG_DFL)
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
            os.execve(program, argv, dict(pairs))  # noqa: S606
        try:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        except KeyboardInterrupt:
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
            os.kill(os.getpid(), _signal.SIGINT)
        return found

    def prepare(argv: Any, extra_path: Any) -> Any:
        """Make this process what a fresh one is before its script; None when it has to be a fresh one."""
        real = os.path.realpath(argv[1])
        front = [os.path.dirname(real), *extra_path]
        if not os.path.isfile(real) or any(
            name.partition(".")[0] in taken for folder in front for name in os.listdir(folder)
        ):
            return None
        site: Any = sys.modules.get("site")
        if site is not None:
            site.USER_BASE = site.USER_SITE = None
            if os.path.isdir(site.getusersitepackages()) and site.ENABLE_USER_SITE:
                return None
        script = argv[1] if argv[1].startswith("/") else os.getcwd() + "/" + argv[1]
        if api.PyImport_GetImporter(script) is not None:
            return None  # an archive with a __main__
        file = libc.fopen(os.fsencode(script), b"rbe")
        if not file:
            return None
        for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
            stream = getattr(sys, name)
            buffering = 0 if number and stream.write_through else -1
            buffer: Any = open(number, "wb" if number else "rb", buffering, closefd=False)
            getattr(buffer, "raw", buffer).name = "<%s>" % name
            about = (stream.encoding, stream.errors, "\n", stream.line_buffering, stream.write_through)
            stream.__init__(buffer, *about)  # anew, but the same object: modules may have kept it
        sys.argv = argv[1:]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv = argv
        sys.path[:0] = front
        sys.pycache_prefix = os.environ.get("PYTHONPYCACHEPREFIX") or None
        renew()
        api.Py_LeaveRecursiveCall()  # the call of `run_file` counts as a level, which a script would lack
        return file, os.fsencode(script), 1, None

    def renew() -> None:
        """What some modules make once for their process, and do not renew in a forked one themselves."""
        modules: Any = sys.modules.get
        if (random := modules("numpy.random")) is not None:
            random.seed()
        if (process := modules("multiprocessing.process")) is not None:
            process.ORIGINAL_DIR = os.getcwd()
            process.current_process().authkey = os.urandom(32)
        if (logging := modules("logging")) is not None:
            whole = isinstance(logging._startTime, int)
            logging._startTime = time.time_ns() if whole else time.time()

    class Status(dict):  # type: ignore[type-arg]
        """What `run_file` returned → exit status. No Python is run for a script that ended well."""

        def __missing__(self, result: int) -> int:
            if getattr(sys, "last_type", None) is not KeyboardInterrupt:
                return 1
            libc.on_exit(die_of, None)  # is called with the exit status: it ends by that signal
            return int(_signal.SIGINT)

    results = itertools.starmap(run_file, iter(start, None))
    chain = map(api.Py_Exit, map(Status({0: 0}).__getitem__, results))
    try:  # as large as a script may want to have its own, which can grow; it is only addresses
        _thread.stack_size(1 << 30)
        _thread.start_new_thread(list, (chain,))
    except RuntimeError:  # more than RLIMIT_DATA
        _thread.stack_size(0)
        _thread.start_new_thread(list, (chain,))
    while True:
        time.sleep(3600)


# -- in process 1 -------------------------------------------------------------------------------------


class Warm:
    """The zygotes of this sandbox."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.known: Dict[Any, Zygote] = {}  # by what they are for, the one asked for last at the end
        self.pids: Dict[int, Zygote] = {}
        self.notice = ""  # what the next result is to say

    def find(
        self, run: Any, program: bytes, argv: List[bytes], environment: Dict[bytes, bytes]
    ) -> Optional[Zygote]:
        """The zygote that can start a Python now. One that could later is begun once this turn is over."""
        modules = run.spec.get("warm")
        if not modules or run.spec["shell"] or run.spec["pty"] or not is_read_only(program):
            return None
        if os.path.basename(argv[0]) not in NAMES_OF_PYTHON:
            return None
        shared = shared_environment(environment, run.door)
        if shared is None or too_long(argv, environment):
            return None
        key = (program, argv[0], len(run.spec["id"]), tuple(modules), tuple(shared))
        found = self.known.pop(key, None)
        new = found is None
        if found is None:
            found = Zygote(self, program, argv[0], len(run.spec["id"]), list(modules), shared)
        self.known[key] = found
        while len(self.known) > REMEMBERED:
            self.known.pop(next(iter(self.known))).end()
        if found.socket is None and found.starts < STARTS:
            alive = [zygote for zygote in self.known.values() if zygote.socket is not None]
            if len(alive) < MOST or not new:
                while len(alive) >= MOST:
                    alive.pop(0).end()
                self.agent.chores.append(found.start)
        return found if found.ready else None

    def reaped(self, pid: int) -> None:
        """A child of this process has died."""
        found = self.pids.get(pid)
        if found is not None:
            found.died(pid)

    def tell(self) -> str:
        """What is to be said, once."""
        notice, self.notice = self.notice, ""
        return notice


def is_script(argv: List[bytes]) -> bool:
    """`python3 SCRIPT.py …` without options."""
    return len(argv) > 1 and argv[1].endswith(b".py") and not argv[1].startswith(b"-")


def too_long(argv: List[bytes], environment: Dict[bytes, bytes]) -> bool:
    """Whether a kernel could refuse to execute this: then it is asked."""
    strings = [*argv, *(name + value for name, value in environment.items())]
    return sum(map(len, strings)) > MOST_STRINGS or max(map(len, strings)) > LONGEST_STRING


def shared_environment(environment: Dict[bytes, bytes], door: Any) -> Optional[Pairs]:
    """The variables without those of the run alone; None when no zygote may have such ones."""
    own = {name: value for name, value in environment.items() if name not in OF_THE_RUN}
    if door is not None:
        for name, folder in ((b"PATH", b"/bin"), (b"PYTHONPATH", b"/python")):
            first, _, rest = own.get(name, b"").partition(b":")
            if first == door.folder + folder:
                own[name] = rest
        for name in door.proxy.variables if door.proxy is not None else ():
            own.pop(os.fsencode(name), None)
    path = own.get(b"PYTHONPATH", b"")
    if not path:
        own.pop(b"PYTHONPATH", None)
    for name in own:
        if name.startswith(b"LD_") or (name.startswith(b"PYTHON") and name not in SHARED_OPTIONS):
            return None
    if path and not all(is_read_only(entry) for entry in path.split(b":")):
        return None
    return list(own.items())


def is_read_only(path: bytes) -> bool:
    """Whether no script can write there, nor lead it elsewhere."""
    return path.startswith(READ_ONLY) and b"/../" not in path + b"/"


def clients(door: Any) -> List[str]:
    """What a bridge puts in front of the path of modules."""
    return [] if door is None else [os.fsdecode(door.folder + b"/python")]


def memory_file(content: bytes = b"") -> int:
    """A descriptor of a file that has no name."""
    fd = os.memfd_create("order", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
    except OSError:
        os.close(fd)
        raise
    return fd


class Zygote:
    """One warm interpreter as process 1 sees it. Life: nothing → started → importing → ready → nothing."""

    def __init__(
        self, warm: Warm, program: bytes, name: bytes, id_size: int, modules: List[str], shared: Pairs
    ) -> None:
        self.warm = warm
        self.agent = warm.agent
        self.program = program
        self.name = name
        self.id_size = id_size
        self.modules = modules
        self.shared = shared
        self.socket: Any = None
        self.starter = self.pid = 0
        self.starts = 0
        self.ready = False
        self.timer: Any = None

    def start(self) -> None:
        """Begin it, unless that was done."""
        import _socket

        if self.socket is not None:
            return
        if sys.version_info >= TOO_NEW:
            self.lost("Python %d.%d is too new" % sys.version_info[:2], again=False)
            return
        self.starts += 1
        own = {**dict(self.shared), b"HOME": NO_HOME, RUN_ID: b"-" * self.id_size}
        own.pop(b"PYTHONPYCACHEPREFIX", None)
        about = {"__name__": "warm", "modules": self.modules, "environment": self.shared}
        output = -1
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            ours.setsockopt(_socket.SOL_SOCKET, SO_PASSCRED, 1)
            ours.setblocking(False)
            ours.send(marshal.dumps((zygote.__code__, about)))
            output = memory_file()
            words = [self.name, b"-c", (BOOT % sys.hexversion).encode()]
            self.starter = self.agent.spawn(self.program, words, own, (theirs.fileno(), output, output))
        except OSError as error:
            ours.close()
            self.lost("it cannot be started: %s" % error)
            return
        finally:
            theirs.close()
            if output >= 0:
                os.close(output)
        self.socket = ours
        self.warm.pids[self.starter] = self
        self.agent.watch(ours.fileno(), select.EPOLLIN, self.readable)
        slow = "its imports take longer than %d s" % IMPORTING
        self.timer = self.agent.at(IMPORTING, lambda: self.lost(slow, again=False))

    def readable(self, _events: int) -> None:
        """It says that it is there, and then that it is ready or what is wrong."""
        found = receive(self.socket)
        if found is None:
            return
        data, pid = found
        if not data:
            self.lost()
        elif not self.pid:
            if not self.agent.is_child(pid, self.starter):
                self.lost()
                return
            self.pid = pid
            self.warm.pids[pid] = self
            self.answer()
        elif data == b".":
            self.agent.cancel(self.timer)
            self.ready = True
        else:
            self.lost(data.decode("utf-8", "replace"), again=False)

    def answer(self) -> None:
        try:
            self.socket.send(b".")
        except OSError:
            self.lost()

    def died(self, pid: int) -> None:
        """Its process, or the one that made it, is gone."""
        del self.warm.pids[pid]
        if pid == self.starter:
            self.starter = 0
            if not self.pid:
                self.lost()
        elif pid == self.pid:
            self.pid = 0
            self.lost()

    def lost(self, why: str = "", again: bool = True) -> None:
        """It is no use any more. What is told: why it is not started `again`."""
        self.end()
        if not again:
            self.starts = STARTS
        if self.starts >= STARTS:
            what = "python:" + ",".join(self.modules)
            why = why or "it was ended %d times" % STARTS
            self.warm.notice = "no warm interpreter %s: %s" % (what[:SAID], why[:SAID])

    def end(self) -> None:
        """Be rid of it. Its processes are known until they are reaped."""
        if self.socket is None:
            return
        self.agent.cancel(self.timer)
        self.agent.unwatch(self.socket.fileno())
        self.socket.close()
        self.socket = None
        self.ready = False
        for pid in (self.starter, self.pid):
            if pid:
                os.kill(pid, 9)
        self.starter = self.pid = 0


class HandOver:
    """A run on its way to a zygote's fork."""

    def __init__(self, warm: Warm, found: Zygote, run: Any, start: Any) -> None:
        import _socket

        self.agent = warm.agent
        self.zygote = found
        self.run = run
        self.socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        order = -1
        try:
            self.socket.setsockopt(_socket.SOL_SOCKET, SO_PASSCRED, 1)
            self.socket.setblocking(False)
            pairs = list(start.environment.items())
            order = memory_file(marshal.dumps((start.program, start.argv, pairs, clients(run.door))))
            numbers = (theirs.fileno(), order, start.folder, *start.theirs)
            rights = struct.pack("%di" % len(numbers), *numbers)
            found.socket.sendmsg([b"."], [(_socket.SOL_SOCKET, SCM_RIGHTS, rights)])
        except OSError:
            self.socket.close()
            raise
        finally:
            theirs.close()
            if order >= 0:
                os.close(order)
        self.agent.watch(self.socket.fileno(), select.EPOLLIN, self.readable)
        self.timer = self.agent.at(PATIENCE, self.silent)

    def readable(self, _events: int) -> None:
        """The new process says that it is there; or nothing will come of it."""
        found = receive(self.socket)
        if found is None:
            return
        data, pid = found
        if data and self.agent.is_child(pid, os.getpid(), leads=True):
            self.run.began(pid)
            try:
                self.socket.send(b".")
            except OSError:
                pass  # it has died meanwhile, as any run's process may
            self.close()
        else:
            self.close()
            self.run.go_cold()

    def silent(self) -> None:
        self.close()
        self.zygote.lost()  # what waits in its socket is gone with it
        self.run.go_cold()

    def close(self) -> None:
        self.agent.cancel(self.timer)
        self.agent.unwatch(self.socket.fileno())
        self.socket.close()


def receive(channel: Any) -> Optional[Tuple[bytes, int]]:
    """A message and who sent it, by the kernel's word (0 when that is not known); b"" at the end. None when
    there is none yet.
    """
    try:
        data, extra, _, _ = channel.recvmsg(4096, 64)
    except BlockingIOError:
        return None
    except OSError:
        return b"", 0
    for _, kind, about in extra:
        if kind == SCM_CREDENTIALS and len(about) >= CREDENTIALS.size:
            return data, int(CREDENTIALS.unpack_from(about)[0])
    return data, 0

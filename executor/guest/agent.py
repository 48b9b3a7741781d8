"""Process 1 of a sandbox: it starts scripts, moves files, and ends everything when the host goes away.

It is one thread around one epoll. It speaks only the frames of `wire` on descriptors 0 and 1; scripts get
stdio of their own and never see the stream. Standard library only, Python 3.9, nothing imported that is
not used: the time to come up is part of every session.

What it must not do: trust a name, follow a link out of the two roots, wait for anything but epoll, or keep
a signal handler that a script could use. As process 1 with default dispositions it cannot be signalled from
inside, and because it is not dumpable it cannot be read or traced by scripts of the same uid. The one
handler is SIGCHLD's, which does nothing: a script that raises it only makes this loop look for zombies.

A run ends when its leader exits. What the leader left behind has DRAIN seconds to finish writing and is then
killed. Processes belong to the run that is their ancestor; orphans belong to the run whose session or
environment they carry; an orphan that hides both is killed with the first run that ends.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections import deque

from executor.guest.door import Door
from executor.guest.files import FileTask, GetTask, LinkTask, ListTask, PutTask, RemoveTask
from executor.guest.paths import link_compiled, make_workspace
from executor.guest.process import (
    RESET_SIGNALS,
    OomCounter,
    Score,
    attest,
    harden,
    leave,
    process_line,
    processes,
    send,
    set_limits,
)
from executor.guest.runs import READ, Run
from executor.guest.warm import Warm
from executor.guest.wire import (
    ARGS,
    CONTENT,
    DATA,
    FILE,
    GOODBYE,
    GUEST,
    HELLO,
    RESULT,
    RUN,
    SIGNAL,
    Connection,
    ProtocolError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

    from executor.guest.wire import Event

SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python 3.9 has no name for
MAX_GENERATIONS = 256  # between a process and its run's leader
PIPE, WIDE_PIPE = 1 << 16, 1 << 20  # bytes that the stream holds where it is a pipe
WIDE = 2.0  # seconds for which it is wide: all pipes of a user may hold 64 MiB
TASKS: Dict[str, Any] = {
    "put": PutTask,
    "get": GetTask,
    "list": ListTask,
    "remove": RemoveTask,
    "link": LinkTask,
}


class Agent:
    """The loop, the processes and the timers."""

    def __init__(self, lease: float, score: Score) -> None:
        self.score = score
        self.warm = Warm(self)
        self.oom = OomCounter()
        self.connection = Connection(GUEST)
        self.epoll = select.epoll()
        self.handlers: Dict[int, Callable[[int], None]] = {}
        self.runs: Dict[int, Run] = {}
        self.by_pid: Dict[int, Run] = {}
        self.files: Dict[int, Any] = {}
        self.calls: Dict[int, Tuple[Door, Any]] = {}  # by stream
        self.tunnels: Dict[int, Any] = {}  # by stream
        self.next_call = 2
        self.paused: List[Any] = []  # what waits until the stream has taken what was queued
        self.timers: List[Tuple[float, Callable[[], None]]] = []
        self.chores: List[Callable[[], None]] = []  # what is done while the host reads its answer
        self.unsent: Deque[Any] = deque()
        self.writing = False
        self.wide: Set[int] = set()  # ends of the stream
        self.lease = lease
        self.heard = time.monotonic()
        self.wake_read, self.wake_write = os.pipe()

    # -- plumbing --

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        self.handlers[fd] = handler
        self.epoll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        if self.handlers.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def at(self, delay: float, action: Callable[[], None]) -> Any:
        timer = (time.monotonic() + delay, action)
        self.timers.append(timer)
        return timer

    def cancel(self, timer: Any) -> None:
        if timer in self.timers:
            self.timers.remove(timer)

    def loop(self) -> None:
        for fd in (0, 1, self.wake_read, self.wake_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        self.watch(0, select.EPOLLIN, self.host_readable)
        self.watch(self.wake_read, select.EPOLLIN, self.child_changed)
        while True:
            self.write()
            if self.chores:
                chores, self.chores = self.chores, []
                for chore in chores:
                    chore()
            for fd, events in self.epoll.poll(self.wait(), 64):
                handler = self.handlers.get(fd)
                if handler is not None:
                    handler(events)
            self.run_timers()
            if self.paused:
                self.paused = [source for source in self.paused if not source.resume()]
            for stream, task in list(self.files.items()):
                try:
                    task.pump()
                except Exception:
                    self.give_up(stream)

    def wait(self) -> float:
        now = time.monotonic()
        soonest = self.heard + self.lease
        for when, _ in self.timers:
            soonest = min(soonest, when)
        return max(0.0, soonest - now)

    def run_timers(self) -> None:
        now = time.monotonic()
        if now - self.heard > self.lease:
            leave("no word from the host for %g s" % self.lease)
        if self.timers:
            due = [timer for timer in self.timers if timer[0] <= now]
            if due:
                self.timers = [timer for timer in self.timers if timer[0] > now]
                for _, action in due:
                    action()

    def host_readable(self, _events: int) -> None:
        try:
            data = os.read(0, READ)
        except BlockingIOError:
            return
        if not data:
            leave("")
        self.heard = time.monotonic()
        if len(data) >= PIPE // 2 and 0 not in self.wide:
            self.widen(0)
        for event in self.connection.receive(data):
            try:
                self.dispatch(event)
            except ProtocolError:
                raise
            except Exception:
                self.give_up(event.stream, event.type)

    def write(self) -> None:
        while True:
            if not self.unsent:
                self.unsent.extend(self.connection.outgoing())
                if not self.unsent:
                    break
            try:
                size = os.writev(1, [self.unsent[i] for i in range(min(len(self.unsent), 512))])
            except BlockingIOError:
                if 1 not in self.wide and self.widen(1):
                    continue
                if not self.writing:
                    self.writing = True
                    self.watch(1, select.EPOLLOUT, lambda _events: None)
                return
            while size:
                first = self.unsent[0]
                if size >= len(first):
                    size -= len(first)
                    self.unsent.popleft()
                else:
                    self.unsent[0] = memoryview(first)[size:]
                    size = 0
        if self.writing:
            self.writing = False
            self.unwatch(1)

    def widen(self, fd: int) -> bool:
        """Much passes through this end of the stream: with more room, both sides wake up less often."""
        import fcntl  # which most sessions never need

        self.wide.add(fd)  # or it cannot be: a socket, or the user's pipes hold enough
        try:
            fcntl.fcntl(fd, SET_PIPE_SIZE, WIDE_PIPE)
        except OSError:
            return False
        self.at(WIDE, lambda: self.narrow(fd))
        return True

    def narrow(self, fd: int) -> None:
        """Back to the usual size, or later: while files pass, and while it holds more than that."""
        import fcntl

        if not self.files:
            try:
                fcntl.fcntl(fd, SET_PIPE_SIZE, PIPE)
            except OSError:
                pass
            else:
                self.wide.discard(fd)
                return
        self.at(WIDE, lambda: self.narrow(fd))

    # -- frames --

    def dispatch(self, event: Event) -> None:
        kind, stream = event.type, event.stream
        if kind == DATA:
            run = self.runs.get(stream)
            if run is not None:
                if event.channel == ARGS:
                    run.take_args(event.body, event.end)
                elif event.channel == CONTENT:
                    run.take_files(event.body, event.end)
                else:
                    run.feed(event.body, event.end)
                return
            task = self.files.get(stream)
            if task is not None:
                task.received(event.channel, event.body, event.end)
            elif stream in self.calls:
                door, call = self.calls[stream]
                door.answer_data(call, event.body, event.end)
            elif stream in self.tunnels:
                self.tunnels[stream].take(event.body, event.end)
            else:
                self.connection.consumed(stream, event.channel, len(event.body))
        elif kind == RESULT:
            if stream in self.calls:
                door, call = self.calls[stream]
                door.result(call, event.body)
            elif stream in self.tunnels:
                self.tunnels[stream].result()
        elif kind == RUN:
            self.runs[stream] = Run(self, stream, event.body)
        elif kind == FILE:
            self.files[stream] = TASKS.get(event.body.get("op"), FileTask)(self, stream, event.body)
        elif kind == SIGNAL:
            run = self.runs.get(stream)
            if run is not None:
                run.signalled(event.body)
            elif stream in self.files:  # the only thing to say to a file task: stop
                self.files[stream].abort(errno.ECANCELED)
        elif kind == GOODBYE:
            leave("")

    def give_up(self, stream: int, kind: int = DATA) -> None:
        """A request that cannot be understood, or met a fault of ours: it ends, and nothing else does."""
        task = self.files.get(stream)
        if task is None and kind == FILE:
            task = FileTask(self, stream, {})
        if task is not None:
            task.abort(errno.EPROTO)
            return
        run = self.runs.get(stream)
        if run is None and kind == RUN:
            run = Run(self, stream, {})
        if run is not None and run.state == "args":
            run.over({"code": 126, "signal": None, "errno": errno.EPROTO})

    def output_closed(self, stream: int) -> None:
        run = self.runs.get(stream)
        if run is not None:
            run.output_closed()

    # -- processes --

    def spawn(
        self,
        program: bytes,
        argv: List[bytes],
        environment: Dict[bytes, bytes],
        stdio: Sequence[int],
        terminal: str = "",
    ) -> int:
        """Start a process in a session of its own, with a terminal or with these as its stdio. Its pid."""
        actions: List[Tuple[Any, ...]] = [
            (os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(stdio)
        ]
        if terminal:  # opened by the child after its setsid, it becomes its controlling one
            actions = [(os.POSIX_SPAWN_OPEN, 0, terminal, os.O_RDWR, 0)]
            actions += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
        self.score.set(Score.SCRIPTS)  # inherited, so that no child of the script misses it
        try:
            return os.posix_spawn(
                program,
                argv,
                environment,
                file_actions=actions,
                setsid=True,
                setsigdef=RESET_SIGNALS,
                setsigmask=[],
            )
        finally:
            self.score.set(self.score.own)

    def is_child(self, pid: int, parent: int, leads: bool = False) -> bool:
        """Whether a process is a child of another, and (`leads`) a new one that leads a session."""
        found = process_line(pid)
        if found is None or found[0] != parent:
            return False
        return not leads or (found[1] == pid and pid not in self.by_pid and pid not in self.warm.pids)

    def child_changed(self, _events: int) -> None:
        try:
            os.read(self.wake_read, 4096)
        except BlockingIOError:
            pass
        self.reap()

    def reap(self) -> bool:
        """Collect every dead child. False when no child is left at all."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            run = self.by_pid.get(pid)
            if run is not None:
                run.exited(status, usage)
            else:
                self.warm.reaped(pid)

    def kill_members(self, run: Run, number: int) -> int:
        """Signal every process of the run; how many there were. Dead ones are collected on the way."""
        alone = len(self.runs) == 1 and not self.warm.pids
        if alone and not self.reap():
            return 0
        if not alone and run.state == "sweeping" and not self.orphans():
            return 0
        members = self.members(run, alone)
        if number == signal.SIGKILL:
            if run.status is not None:
                run.killed |= members
            if not alone:
                # Stopped first, so that none forks while the others are being killed.
                seen: Set[int] = set()
                while members - seen:
                    for pid in members - seen:
                        send(pid, signal.SIGSTOP)
                    seen |= members
                    members = self.members(run, False)
                members |= seen
        if alone:
            send(-1, number)
        else:
            for pid in members:
                send(pid, number)
        return len(members)

    def orphans(self) -> Set[int]:
        """Children of this process that are neither leaders of runs nor warm interpreters."""
        try:
            with open("/proc/self/task/%d/children" % os.getpid()) as file:
                children = {int(pid) for pid in file.read().split()}
        except OSError:
            children = {pid for pid, (parent, _, _) in processes().items() if parent == os.getpid()}
        return children - set(self.by_pid) - set(self.warm.pids)

    def members(self, run: Run, alone: bool) -> Set[int]:
        """The living processes of a run, zombies left out."""
        table = processes()
        own = os.getpid()
        if alone:
            return {pid for pid, (_, _, state) in table.items() if pid != own and state not in "ZX"}
        below: Dict[int, List[int]] = {}
        for pid, (parent, _, _) in table.items():
            below.setdefault(parent, []).append(pid)
        tops = {run.pid} if run.pid in self.by_pid else set()
        for pid in below.get(own, ()):
            known = pid in self.by_pid or pid in self.warm.pids
            if not known and self.owner(pid, table[pid][1], run) is run:
                tops.add(pid)
        found: Set[int] = set()
        waiting = list(tops)
        while waiting:
            pid = waiting.pop()
            if pid in found or pid not in table:
                continue
            found.add(pid)
            waiting.extend(below.get(pid, ()))
        return {pid for pid in found if table[pid][2] not in "ZX"}

    def belongs(self, pid: int, run: Run) -> bool:
        """Whether a process surely belongs to a run: it descends from the leader, or is an orphan in the
        leader's session, which no other process can join. Whoever hides its descent does not belong.
        """
        own = os.getpid()
        for _ in range(MAX_GENERATIONS):
            leads = self.by_pid.get(pid)
            if leads is not None:
                return leads is run
            found = process_line(pid)
            if found is None:
                return False
            parent, session, _ = found
            if parent == own:
                return session == run.pid and run.pid in self.by_pid
            pid = parent
        return False

    def owner(self, pid: int, session: int, asking: Run) -> Optional[Run]:
        """The run that an orphan belongs to; the one that asks when it hides that."""
        others = [run for run in self.runs.values() if run is not asking]
        for run in others:
            if session == run.pid:
                return run
        if session == asking.pid:
            return asking
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                marks = file.read(1 << 17).split(b"\0")
        except OSError:
            return asking
        for run in others:
            if run.marker in marks:
                return run
        return asking


def main() -> None:
    os.closerange(3, 1 << 16)  # what a runtime let through would reach every script
    score = Score()
    harden()
    # The host's hello comes first; it is read here because it sets the limits of this process.
    connection = Connection(GUEST)
    events: List[Event] = []
    while not events:
        data = os.read(0, 65536)
        if not data:
            os._exit(0)
        events = connection.receive(data)
    hello = events[0].body
    set_limits(hello["rlimits"])
    agent = Agent(float(hello["lease_s"]), score)
    agent.connection = connection
    make_workspace()
    link_compiled()
    body = attest()
    body["nonce"] = hello["nonce"]
    connection.control(HELLO, 0, body)
    try:
        for event in events[1:]:
            agent.dispatch(event)
        agent.loop()
    except ProtocolError as error:
        leave("protocol: %s" % error)


if __name__ == "__main__":
    main()

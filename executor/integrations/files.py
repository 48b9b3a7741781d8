"""Files at any path of a sandbox, as its scripts see them, with the errors of the operating system.

`AsyncSession.read` and `put` know `/workspace` and `/skills` and reach them from outside. Frameworks name
any path (`/tmp/x`, `/etc`) and promise `PermissionError` and the like, so these go in and try. A `FileCall`
is what to run and what its answer means; a caller with an event loop and one without run it their own way:

    data = await perform(session, reading("/tmp/x", most=1 << 20))
    call = reading("/tmp/x", most=1 << 20)
    data = call.answer(session.exec(call.command, **call.options))
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass, field
from typing import Any

from executor.errors import BadPathError, SandboxLostError
from executor.models import ExecResult
from executor.session import AsyncSession

TIMEOUT = 120.0  # seconds for one file, be it the largest that a session can hold
_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")  # the rest stand for bytes that are not UTF-8
SLACK = 1 << 16  # a sandbox is believed no more than this beyond what was asked for

# Runs inside, with nothing of the image's site or of the caller's environment. It says `errno N` on stderr.
# A pipe or a device is refused before it is read: it could block, or never end.
_PROGRAM = """
import errno, os, stat, sys
what, path, most = sys.argv[1], os.fsencode(sys.argv[2]), int(sys.argv[3])
def plain(flags, mode=0o666):
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    kind = os.fstat(fd).st_mode
    if stat.S_ISDIR(kind):
        raise OSError(errno.EISDIR, '')
    if not stat.S_ISREG(kind):
        raise OSError(errno.EINVAL, '')
    return fd
try:
    if what == 'read':
        with open(plain(os.O_RDONLY), 'rb') as file:
            if os.fstat(file.fileno()).st_size > most:
                raise OSError(errno.EFBIG, '')
            left = most
            while left >= 0:
                piece = file.read(min(left + 1, 1 << 16))
                if not piece:
                    break
                left -= len(piece)
                sys.stdout.buffer.write(piece)
            if left < 0:
                raise OSError(errno.EFBIG, '')
            sys.stdout.buffer.flush()
    elif what == 'write':
        os.makedirs(os.path.dirname(path) or b'.', exist_ok=True)
        with open(plain(os.O_WRONLY | os.O_CREAT), 'wb') as file:
            file.truncate(0)
            while piece := sys.stdin.buffer.read(1 << 16):
                file.write(piece)
    else:
        os.unlink(path)
except OSError as error:
    sys.exit('errno %d' % error.errno)
"""


@dataclass
class FileCall:
    """One access to a file: `command` and `options` for `exec`, and `answer` for its result."""

    what: str
    path: str
    most: int = 0
    content: bytes | None = None
    _received: bytearray = field(default_factory=bytearray)

    @property
    def command(self) -> list[str]:
        """The argument vector."""
        if not self.path or "\0" in self.path or _SURROGATE.search(self.path):
            raise BadPathError(f"{self.path!r} is no path")
        return ["python3", "-I", "-S", "-c", _PROGRAM, self.what, self.path, str(self.most)]

    @property
    def options(self) -> dict[str, Any]:
        """The other arguments of `exec`."""
        return {"stdin": self.content, "timeout": TIMEOUT, "on_output": self._take, "max_output": 4096}

    def _take(self, stream: str, data: bytes) -> None:
        if stream == "stdout" and len(self._received) <= self.most + SLACK:
            self._received += data

    def answer(self, result: ExecResult) -> bytes:
        """The bytes that were read, b"" for another access. OSError of the kind that it met, with the path;
        EFBIG for more than `most` bytes. TimeoutError. SandboxLostError.
        """
        if result.status == "lost":
            raise SandboxLostError(f"the sandbox was lost while {self.path!r} was used")
        if result.timed_out:
            raise TimeoutError(f"{self.what} of {self.path!r} took more than {TIMEOUT:g} s")
        if result.status == "ok":
            if len(self._received) > self.most:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self.path)
            return bytes(self._received)
        if match := re.fullmatch(r"errno (\d{1,3})", result.stderr.strip(), re.ASCII):
            raise OSError(int(match[1]), os.strerror(int(match[1])), self.path)
        raise OSError(
            errno.EIO, f"{self.what} ended with {result.exit_code}: {result.stderr[:200]}", self.path
        )


def reading(path: str, *, most: int) -> FileCall:
    """All bytes of a file that has at most `most`."""
    return FileCall("read", path, most)


def writing(path: str, content: bytes) -> FileCall:
    """A file with this content, in place of what was there, its folders made."""
    return FileCall("write", path, content=content)


def removing(path: str) -> FileCall:
    """No file at this path."""
    return FileCall("remove", path)


async def perform(session: AsyncSession, call: FileCall) -> bytes:
    """Run it. What `FileCall.answer` returns or raises."""
    return call.answer(await session.exec(call.command, **call.options))

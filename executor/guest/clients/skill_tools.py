"""Host tools for a skill's script: what was granted to this run, and nothing else.

    from skill_tools import tools, workspace, output
    tools.search_docs(query="tax")            # or tools.call("search-docs", {"query": "tax"})
    await tools.aio.search_docs(query="tax")  # many at once, with asyncio.gather
    text = workspace.read_file("notes.md")
    output.write_file("answer.txt", text)

It is sent into the sandbox with the run, is of the standard library alone, and works on Python 3.8 and newer.
Every check is made on the host; this file only carries calls there and turns answers into values and errors.
"""

# mypy: ignore-errors

import json as _json
import os as _os
import struct as _struct
import threading as _threading

__all__ = [
    "ApprovalRejected",
    "BridgeClosed",
    "Cancelled",
    "LimitExceeded",
    "SkillBridgeError",
    "ToolDenied",
    "ToolError",
    "ToolInputError",
    "ToolNotFound",
    "ToolTimeout",
    "WorkspaceError",
    "file",
    "log",
    "output",
    "progress",
    "tools",
    "workspace",
]

_HEADER = _struct.Struct(">BII")
_REQUEST, _GIVE_UP = 1, 2
_PIECE = 1 << 20  # bytes of a file at a time


class SkillBridgeError(RuntimeError):
    """Base of every error of a call. `code` is a word, `details` a list, `retryable` whether to try again."""

    code = ""
    retryable = False

    def __init__(self, message, code="", details=(), retryable=False):
        RuntimeError.__init__(self, message)
        self.message = message
        self.code = code or self.code
        self.details = list(details)
        self.retryable = bool(retryable)

    def __str__(self):
        return self.message


class ToolNotFound(SkillBridgeError, AttributeError, LookupError):
    """The tool is not granted to this run."""


class ToolDenied(SkillBridgeError, PermissionError):
    """The policy, or a missing right."""


class ApprovalRejected(ToolDenied):
    """A person said no, or nobody answered."""


class ToolInputError(SkillBridgeError, ValueError):
    """The input does not fit the tool's schema; `details` says where."""


class ToolError(SkillBridgeError):
    """The tool failed."""


class ToolTimeout(SkillBridgeError, TimeoutError):
    """No result in time."""


class LimitExceeded(SkillBridgeError):
    """Too many calls, or a value that is too large."""


class Cancelled(SkillBridgeError):
    """The call was given up."""


class BridgeClosed(SkillBridgeError, ConnectionError):
    """The run is over or has no bridge; nothing more can be called."""


class WorkspaceError(SkillBridgeError, OSError):
    """Something went wrong with a file of the workspace."""


class WorkspaceNotFound(WorkspaceError, FileNotFoundError):
    """There is no such file."""


class WorkspaceExists(WorkspaceError, FileExistsError):
    """It exists."""


class WorkspaceIsDirectory(WorkspaceError, IsADirectoryError):
    """It is a folder."""


class WorkspaceNotDirectory(WorkspaceError, NotADirectoryError):
    """A part of the path is not a folder."""


class WorkspaceNotText(WorkspaceError, ValueError):
    """It is not UTF-8 text: use `read_bytes`."""


class WorkspaceBadPath(WorkspaceError, ValueError):
    """The path leads out of the workspace, or is none."""


_CLASSES = {
    "TOOL_NOT_FOUND": ToolNotFound,
    "METHOD_NOT_FOUND": ToolNotFound,
    "DENIED": ToolDenied,
    "APPROVAL_REJECTED": ApprovalRejected,
    "APPROVAL_EXPIRED": ApprovalRejected,
    "TOOL_INPUT_INVALID": ToolInputError,
    "TOOL_OUTPUT_INVALID": ToolError,
    "TOOL_FAILED": ToolError,
    "TOOL_TIMEOUT": ToolTimeout,
    "RATE_LIMITED": LimitExceeded,
    "TOO_MANY_CALLS": LimitExceeded,
    "TOO_MANY_INFLIGHT": LimitExceeded,
    "VALUE_TOO_LARGE": LimitExceeded,
    "CANCELLED": Cancelled,
    "REVOKED": BridgeClosed,
    "PROTOCOL": BridgeClosed,
    "NOT_FOUND": WorkspaceNotFound,
    "EXISTS": WorkspaceExists,
    "IS_DIR": WorkspaceIsDirectory,
    "NOT_DIR": WorkspaceNotDirectory,
    "NOT_UTF8": WorkspaceNotText,
    "BAD_PATH": WorkspaceBadPath,
    "IO": WorkspaceError,
}


# -- the way to the host ------------------------------------------------------------------------------


def _folder():
    found = _os.environ.get("SKILL_BRIDGE")
    if not found:
        raise BridgeClosed("This run has no bridge: nothing was granted to it.", "REVOKED")
    return found


def _closed():
    return BridgeClosed("The run is over; its grant was revoked.", "REVOKED")


_settings_read = None


def _settings():
    """What the host says of this run: {"tools": [...], "argument": bytes}."""
    global _settings_read
    if _settings_read is None:
        try:
            with open(_os.path.join(_folder(), "catalog.json"), encoding="utf-8") as file:
                _settings_read = _json.load(file)
        except OSError:
            raise _closed() from None
    return _settings_read


def _token():
    with open(_os.path.join(_folder(), "token"), "rb") as file:
        return file.read().strip() + b"\n"


def _pack(number, method, params, timeout):
    body = {"method": method, "params": params}
    if timeout is not None:
        body["timeout_ms"] = max(1, int(timeout * 1000))
    try:
        data = _json.dumps(body, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolInputError("The input is not JSON: %s" % error, "TOOL_INPUT_INVALID") from None
    most = _settings()["argument"]
    if len(data) > most:
        raise LimitExceeded(
            "The request has %d bytes, at most %d. Write the data to a file and pass its path."
            % (len(data), most),
            "VALUE_TOO_LARGE",
        )
    return _HEADER.pack(_REQUEST, number, len(data)) + data


def _unpack(data):
    answer = _json.loads(data)
    if answer.get("ok"):
        return answer.get("value")
    error = answer["error"]
    kind = _CLASSES.get(error["code"], SkillBridgeError)
    raise kind(error["message"], error["code"], error.get("details", ()), error.get("retryable", False))


class _Gone(Exception):
    """The connection ended before the request was on it: the host takes the places of idle ones."""


class _Link:
    """One connection of this process, shared by its threads: whoever waits reads for all of them."""

    def __init__(self):
        import socket

        self.pid = _os.getpid()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.connect(_os.path.join(_folder(), "s"))
            # Only process 1 may be at the other end: the socket's file could have been replaced.
            peer = _struct.unpack("3i", self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            if peer != 1:
                raise OSError("not the guest")
            self.socket.sendall(_token())
        except OSError:
            self.socket.close()
            raise _closed() from None
        self.changed = _threading.Condition()
        self.sending = _threading.Lock()
        self.numbers = 0
        self.answers = {}  # number → None while it is awaited, then its bytes
        self.buffer = b""
        self.reading = False
        self.broken = False

    def ask(self, method, params, timeout):
        with self.changed:
            self.numbers += 1
            number = self.numbers
            self.answers[number] = None
        try:
            data = _pack(number, method, params, timeout)
            sent = True
            try:
                with self.sending:
                    self.socket.sendall(data)
            except OSError:
                sent = False  # the answer that says why may be there already
            try:
                return _unpack(self.wait(number))
            except _Gone:
                if sent:
                    raise _closed() from None
                raise
        except KeyboardInterrupt:
            self.give_up(number)
            raise
        finally:
            with self.changed:
                self.answers.pop(number, None)

    def wait(self, number):
        with self.changed:
            while self.answers[number] is None:
                if self.broken and not self.reading:
                    raise _Gone
                if self.reading:
                    self.changed.wait()
                    continue
                self.reading = True
                self.changed.release()
                found = None
                try:
                    found = self.read()
                finally:
                    self.changed.acquire()
                    self.reading = False
                    if found is None:
                        self.broken = True
                    elif found[0] in self.answers:
                        self.answers[found[0]] = found[1]
                    self.changed.notify_all()
            return self.answers[number]

    def read(self):
        """(number, bytes) of the next answer; None at the end."""
        try:
            while True:
                if len(self.buffer) >= _HEADER.size:
                    _, number, length = _HEADER.unpack_from(self.buffer)
                    end = _HEADER.size + length
                    while len(self.buffer) < end:
                        piece = self.socket.recv(max(65536, end - len(self.buffer)))
                        if not piece:
                            return None
                        self.buffer += piece
                    data, self.buffer = self.buffer[_HEADER.size : end], self.buffer[end:]
                    return number, data
                piece = self.socket.recv(65536)
                if not piece:
                    return None
                self.buffer += piece
        except OSError:
            return None

    def give_up(self, number):
        try:
            with self.sending:
                self.socket.sendall(_HEADER.pack(_GIVE_UP, number, 0))
        except OSError:
            pass


_link = None
_linking = _threading.Lock()


def _sync(method, params, finish=None, timeout=None):
    global _link
    while True:
        with _linking:
            # After a fork the connection is the parent's.
            fresh = _link is None or _link.pid != _os.getpid() or _link.broken
            if fresh:
                _link = _Link()
            link = _link
        try:
            value = link.ask(method, params, timeout)
        except _Gone:
            link.broken = True
            if fresh:
                raise _closed() from None
            continue
        return value if finish is None else finish(value)


class _AsyncLink:
    """One connection of one event loop."""

    def __init__(self):
        self.reader = self.writer = self.task = None
        self.numbers = 0
        self.waiting = {}
        self.lock = None

    async def connect(self):
        import asyncio

        try:
            path = _os.path.join(_folder(), "s")
            self.reader, self.writer = await asyncio.open_unix_connection(path)
            self.writer.write(_token())
        except OSError:
            raise _closed() from None
        self.task = asyncio.ensure_future(self.read())

    async def read(self):
        try:
            while True:
                _, number, length = _HEADER.unpack(await self.reader.readexactly(_HEADER.size))
                data = await self.reader.readexactly(length)
                future = self.waiting.pop(number, None)
                if future is not None and not future.done():
                    future.set_result(data)
        except (EOFError, OSError):
            pass
        finally:
            self.writer.close()
            waiting, self.waiting = self.waiting, {}
            for future in waiting.values():
                if not future.done():
                    future.set_exception(_closed())
            self.task = None

    async def ask(self, method, params, timeout):
        import asyncio

        if self.lock is None:
            self.lock = asyncio.Lock()
        async with self.lock:
            if self.task is None or self.task.done():
                await self.connect()
        self.numbers += 1
        number = self.numbers
        data = _pack(number, method, params, timeout)
        future = self.waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self.writer.write(data)
            return _unpack(await future)
        except asyncio.CancelledError:
            if self.waiting.pop(number, None) is not None and self.task is not None:
                self.writer.write(_HEADER.pack(_GIVE_UP, number, 0))
            raise


_async_links = {}


async def _async(method, params, finish=None, timeout=None):
    import asyncio

    loop = asyncio.get_running_loop()
    for other in [other for other in _async_links if other.is_closed()]:
        del _async_links[other]
    pid, link = _async_links.get(loop, (0, None))
    if link is None or pid != _os.getpid():
        link = _AsyncLink()
        _async_links[loop] = (_os.getpid(), link)
    value = await link.ask(method, params, timeout)
    return value if finish is None else finish(value)


# -- what a script sees -------------------------------------------------------------------------------


class _Tool:
    """A granted tool. Call it with keywords, or with one mapping."""

    def __init__(self, entry, ask):
        self._entry = entry
        self._ask = ask
        self.__name__ = self.__qualname__ = entry["identifier"]
        self.__doc__ = entry["description"]

    def __call__(self, *args, **keywords):
        if len(args) > 1:
            raise TypeError("%s() takes one mapping, or keywords" % self.__name__)
        value = args[0] if args else {}
        if keywords:
            value = dict(value, **keywords)
        return self._ask("tool.call", {"name": self._entry["name"], "input": value})

    @property
    def __signature__(self):
        import inspect

        schema = self._entry["input_schema"]
        required = schema.get("required", [])
        found = []
        for name in schema.get("properties", {}):
            if name.isidentifier():
                default = inspect.Parameter.empty if name in required else None
                found.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
        return inspect.Signature(found)

    @property
    def schema(self):
        """JSON Schema of its input."""
        return self._entry["input_schema"]

    def __repr__(self):
        return "<tool %s>" % self._entry["name"]


class _Tools:
    """The granted tools, by name."""

    def __init__(self, ask, aio=None):
        self._ask = ask
        if aio is not None:
            self.aio = aio

    def call(self, name, input=None, timeout=None):
        """Call a tool by its exact name; `timeout` in seconds."""
        params = {"name": name, "input": {} if input is None else input}
        return self._ask("tool.call", params, timeout=timeout)

    def list(self, query=""):
        """Names and descriptions of the granted tools."""
        return self._ask("tool.list", {"query": query})

    def describe(self, name):
        """Everything about one tool, with its schemas."""
        return self._ask("tool.describe", {"name": name})

    def __getattr__(self, name):
        if not (name.startswith("__") and name.endswith("__")):
            for entry in _settings()["tools"]:
                if entry["identifier"] == name:
                    return _Tool(entry, self._ask)
        raise ToolNotFound("Tool not available: %s" % name, "TOOL_NOT_FOUND")

    def __dir__(self):
        return sorted([*object.__dir__(self), *(entry["identifier"] for entry in _settings()["tools"])])


def _bytes(value):
    import base64

    return base64.b64decode(value["base64"])


class _Workspace:
    """The folder that the host offers. Paths are relative to it."""

    def __init__(self, ask, aio=None):
        self._ask = ask
        if aio is not None:
            self.aio = aio

    def read_file(self, path):
        """A text file."""
        return self._ask("workspace.read", {"path": str(path)})

    def read_bytes(self, path, offset=0, size=_PIECE):
        """Up to `size` bytes of a file from `offset` on (default: the first MiB)."""
        return self._ask("workspace.read", {"path": str(path), "offset": offset, "size": size}, _bytes)

    def list_files(self, path="."):
        """Entries of a folder: name, type, size."""
        return self._ask("workspace.list", {"path": str(path)})

    def glob(self, pattern):
        """Paths of the files that match."""
        return self._ask("workspace.glob", {"pattern": pattern})

    def stat(self, path):
        """type and size; None when there is nothing."""
        return self._ask("workspace.stat", {"path": str(path)})

    def write_file(self, path, content):
        """Write text or bytes; needs the right to."""
        params = {"path": str(path)}
        if isinstance(content, str):
            params["text"] = content
        else:
            import base64

            params["base64"] = base64.b64encode(content).decode("ascii")
        return self._ask("workspace.write", params)

    def delete(self, path):
        """Remove a file or an empty folder; needs the right to."""
        return self._ask("workspace.delete", {"path": str(path)})


class _Output:
    """Deliverables: files in $OUTPUT_DIR."""

    def write_file(self, name, content):
        """Write text or bytes under a relative name; returns the path."""
        parts = [part for part in str(name).split("/") if part not in ("", ".")]
        if not parts or ".." in parts or str(name).startswith("/") or "\0" in str(name):
            raise WorkspaceBadPath("%r is not the name of an output" % (name,), "BAD_PATH")
        path = _os.path.join(_os.environ.get("OUTPUT_DIR", "/workspace/out"), *parts)
        _os.makedirs(_os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        return path


class _AsyncOutput(_Output):
    async def write_file(self, name, content):
        return _Output.write_file(self, name, content)


def file(path):
    """A file of the sandbox as an argument of a tool that takes one."""
    return {"$file": _os.path.abspath(path)}


def log(message, level="info", **fields):
    """Leave a line in the host's record of this run."""
    _sync("log", {"message": str(message), "level": level, "fields": fields})


def progress(message="", fraction=None):
    """Say how far it is."""
    _sync("progress", {"message": str(message), "fraction": fraction})


tools = _Tools(_sync, _Tools(_async))
workspace = _Workspace(_sync, _Workspace(_async))
output = _Output()

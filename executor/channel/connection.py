"""The channel: many requests in flight over one stream, each ended by its answer, its deadline or the
sandbox's death.

The reader is a callback of the event loop and never waits for a consumer: what comes is parsed, checked and
put where its request keeps it, in bounded memory, because only as much credit is given as has been used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from executor.channel.attestation import Expected, check_attestation
from executor.channel.calls import GONE, Bridge, CallRequest
from executor.channel.files import ContentReader, FileRequest, Listing, ListingReader, path_error
from executor.channel.runs import RunHandle, RunSpec
from executor.channel.tunnels import Tunnel
from executor.errors import (
    ExecutorError,
    ProtocolError,
    SandboxError,
    SandboxLostError,
    SandboxStartError,
    SessionClosedError,
)
from executor.guest import bundle, records, wire
from executor.runtimes.base import Sandbox

START_TIMEOUT = 20.0  # from the sandbox's start to the guest's hello
PING_EVERY = 5.0
SILENCE = 15.0  # without a byte from the guest: it is lost
LEASE = 30.0  # without a byte from the host the guest ends itself
STALL = 60.0  # a file request that makes no progress
EXIT_MARGIN = 5.0  # beyond timeout and grace, for a starved guest to report a run's end
HIGH_WATER = 1 << 20  # queued bytes of a channel at which its producer waits


class Channel:
    """The host end of one sandbox's stream. Use it from one event loop only."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._stream = sandbox.stream
        self._connection = wire.Connection(wire.HOST)
        self._requests: dict[int, RunHandle | FileRequest] = {}
        self._next = 1
        self._calls: dict[int, CallRequest | Tunnel] = {}
        self._answered: set[CallRequest | Tunnel] = set()
        self._hello: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._on_broken: Callable[[ExecutorError], None] | None = None
        self._heard = time.monotonic()
        self._heartbeat: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._flushing = False
        self.broken: ExecutorError | None = None
        self.starved = False
        """The kernel killed for memory in it; whoever runs something next may want to look (`Box.to_run`)."""
        self.python = ""
        """Version of the Python that runs the guest, which is the image's."""

    # -- life --

    async def open(self, expected: Expected, rlimits: dict[str, int]) -> None:
        """Send the guest if needed, say hello, and check what it attests. SandboxStartError if it fails."""
        if self.sandbox.sends_guest:
            source = bundle.source()
            self._stream.write([len(source).to_bytes(4, "big"), source])
        self._connection.control(
            wire.HELLO, 0, {"nonce": expected.nonce, "rlimits": rlimits, "lease_s": LEASE}
        )
        self._stream.start(self._received, self._ended, self.flush)
        self.flush()
        try:
            body = await asyncio.wait_for(self._hello, START_TIMEOUT)
        except TimeoutError:
            error = SandboxStartError(f"the guest said nothing for {START_TIMEOUT:g} s after its start")
            self.break_off(error)
            raise error from None
        except SandboxLostError as error:
            _, why = await self.sandbox.post_mortem()
            raise SandboxStartError(f"the sandbox ended while it started: {why}") from error
        except ProtocolError as error:
            raise SandboxStartError(
                f"what started is not the guest: {error.message}",
                hint="Look at what the image writes to stdout when its python3 starts.",
            ) from error
        try:
            check_attestation(body, expected)
        except SandboxStartError as error:
            self.break_off(error, tell=False)
            raise
        self.python = str(body["python"])[:20]
        self._heartbeat = asyncio.get_running_loop().create_task(self._beat())

    def hand_over(self, sandbox: Sandbox, on_broken: Callable[[ExecutorError], None]) -> None:
        """It is a session's now, which is told when it breaks."""
        self.sandbox, self._on_broken = sandbox, on_broken
        self._check()

    def close(self) -> None:
        """Close the stream; the guest ends itself and all it started. Pending requests fail."""
        if self.broken is None:
            self._connection.control(wire.GOODBYE, 0, {})
            self.flush()
        self.break_off(SessionClosedError("the session was closed", hint="Open a new one."), tell=False)

    def break_off(self, error: ExecutorError, *, tell: bool = True) -> None:
        """Poison the channel: everything pending and everything later fails with `error`."""
        if self.broken is not None:
            return
        self.broken = error
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._stream.close()
        if not self._hello.done():
            self._hello.set_exception(error)
            self._hello.exception()
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.failed(error)
        calls, self._calls = self._calls, {}
        self._answered.clear()
        for call in calls.values():
            call.failed()
        self._wake()
        if tell and self._on_broken is not None:
            self._on_broken(error)

    async def _beat(self) -> None:
        while True:
            slept = time.monotonic()
            await asyncio.sleep(PING_EVERY)
            now = time.monotonic()
            if now - slept > 2 * PING_EVERY:
                self._heard = now  # this process stood still, and may not have read what is there
            silent = now - self._heard
            if silent > SILENCE:
                self.break_off(SandboxLostError(f"the sandbox has not answered for {silent:.0f} s"))
                return
            self._connection.ping(b"\0" * 8)
            self.flush()

    # -- receiving --

    def _received(self, data: bytes) -> None:
        if self.broken is not None:
            return
        self._heard = time.monotonic()
        try:
            for event in self._connection.receive(data):
                self._event(event)
        except (wire.ProtocolError, ProtocolError) as error:
            self._breach(error)
            return
        self.flush()

    def _breach(self, why: Exception) -> ProtocolError:
        error = ProtocolError(
            f"the sandbox broke the protocol: {why}",
            hint="It has been destroyed. A script in it may have attacked it; its output is not "
            "to be trusted.",
        )
        self.break_off(error)
        return error

    def _event(self, event: wire.Event) -> None:
        if event.type == wire.CALL:
            self._call(event.stream, event.body)
        elif event.type == wire.TUNNEL:
            self._tunnel(event.stream, event.body)
        elif event.stream:
            request = self._requests.get(event.stream) or self._calls.get(event.stream)
            if request is not None:
                request.event(event)
        elif event.type == wire.HELLO:
            if not self._hello.done():
                self._hello.set_result(event.body)
        elif event.type == wire.GOODBYE:
            raise ProtocolError("the guest said goodbye")

    def _call(self, stream: int, body: dict[str, Any]) -> None:
        """A call is handed to the bridge of the run that it names, if that is alive and has one."""
        call = CallRequest(self, stream, body)
        self._calls[stream] = call
        bridge = self._bridge_of(body)
        if bridge is not None:
            bridge.incoming(call)
        else:
            call.reply(GONE[call.form])

    def _tunnel(self, stream: int, body: dict[str, Any]) -> None:
        tunnel = Tunnel(self, stream)
        self._calls[stream] = tunnel
        bridge = self._bridge_of(body)
        if bridge is not None:
            bridge.connected(tunnel)
        else:
            tunnel.close()

    def _bridge_of(self, body: dict[str, Any]) -> Bridge | None:
        number = body.get("run")
        run = self._requests.get(number) if type(number) is int else None
        if isinstance(run, RunHandle) and run.spec.door is not None and not run.has_ended:
            return run.spec.door.bridge
        return None

    def end_tunnel(self, stream: int, *, cut: bool) -> None:
        """Say the last word of a tunnel."""
        if self.broken is None and stream in self._calls:
            self._answered.add(self._calls[stream])
            self._connection.control(wire.RESULT, stream, {})
            if cut:
                self._connection.cut(stream, wire.CONTENT)
            else:
                self._connection.data(stream, wire.CONTENT, b"", end=True)
            self.flush()

    def answer(self, stream: int, payload: bytes) -> None:
        """Queue and write the answer of a call."""
        if self.broken is None and stream in self._calls:
            self._answered.add(self._calls[stream])
            self._connection.control(wire.RESULT, stream, {"bytes": len(payload)})
            self._connection.data(stream, wire.CONTENT, payload, end=True)
            self.flush()

    def cut_answer(self, stream: int) -> None:
        """Drop what is left of an answer."""
        if self.broken is None:
            self._connection.cut(stream, wire.CONTENT)
            self.flush()

    def is_open(self, stream: int) -> bool:
        """Whether frames may still pass on the stream."""
        return self.broken is None and self._connection.is_open(stream)

    def forget_call(self, stream: int) -> None:
        """The call is over."""
        call = self._calls.pop(stream, None)
        if call is not None:
            self._answered.discard(call)

    def _ended(self) -> None:
        self.break_off(SandboxLostError("the sandbox ended"))

    # -- sending --

    def flush(self) -> None:
        """Write what may be written now."""
        while self._stream.writable and self.broken is None:
            buffers = self._connection.outgoing()
            if not buffers:
                break
            self._stream.write(buffers)
        for call in list(self._answered):
            call.moved()
        self._wake()

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def control(self, kind: int, stream: int, body: dict[str, Any]) -> None:
        """Queue and write a control frame."""
        if self.broken is None:
            self._connection.control(kind, stream, body)
            self.flush()

    def consumed(self, stream: int, channel: int, size: int) -> None:
        """Give credit back; it leaves with the next flush."""
        self._connection.consumed(stream, channel, size)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flushing = False
        self.flush()

    @property
    def runs(self) -> int:
        """Runs under way."""
        return sum(isinstance(request, RunHandle) for request in self._requests.values())

    def forget(self, stream: int) -> None:
        """The request has its answer."""
        self._requests.pop(stream, None)

    async def send(
        self,
        stream: int,
        channel: int,
        data: Any,
        *,
        end: bool = False,
        doing: str = "",
        high: int = HIGH_WATER,
    ) -> None:
        """Queue bytes and wait while more than `high` are queued.

        A script may leave its stdin unread for as long as it likes. With `doing`, the guest itself has to
        take what is sent: one that takes nothing for STALL seconds is lost.
        """
        self._check()
        self._connection.data(stream, channel, data, end)
        self.flush()
        seen, since = -1, 0.0
        while (
            self.broken is None
            and (queued := self._connection.queued(stream, channel)) > high
            and self._connection.is_open(stream)
        ):
            now = time.monotonic()
            if queued != seen:
                seen, since = queued, now
            elif doing and now - since > STALL:  # every heartbeat wakes this loop
                raise self._stalled(doing)
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _check(self) -> None:
        if self.broken is not None:
            raise type(self.broken)(self.broken.message, hint=self.broken.hint)

    def _stalled(self, doing: str) -> SandboxLostError:
        error = SandboxLostError(f"the sandbox made no progress for {STALL:g} s: {doing}")
        self.break_off(error)
        return error

    def _open_stream(self) -> int:
        self._check()
        if len(self._requests) >= wire.MAX_STREAMS:
            raise SandboxError(
                f"{wire.MAX_STREAMS:,} requests are under way in this session",
                hint="Wait for some of them, or use more sessions.",
            )
        stream = self._next
        self._next += 2
        return stream

    # -- runs --

    async def run(self, spec: RunSpec) -> RunHandle:
        """Start a run. It is under way when this returns; `wait` for its report."""
        words = [spec.cwd, *spec.argv, *[key + b"=" + value for key, value in spec.env.items()]]
        blob = records.join_names(words)
        streaming = spec.on_output is not None or spec.interactive
        stream = self._open_stream()
        handle = RunHandle(self, stream, spec)
        body = {
            "id": spec.run_id,
            "argc": len(spec.argv),
            "shell": spec.shell,
            "stdin": spec.stdin is not None or spec.interactive,
            "pty": list(spec.pty) if spec.pty else None,
            "timeout_ms": None if spec.timeout is None else max(1, int(spec.timeout * 1000)),
            "grace_ms": int(spec.grace * 1000),
            "head": [-1, -1] if streaming or spec.output_limit is not None else list(spec.head),
            "tail": list(spec.tail),
        }
        if spec.warm:
            body |= {"warm": list(spec.warm), "only_warm": spec.only_warm}
        if (door := spec.door) is not None:
            body["bridge"] = {
                "name": door.name,
                "calls": door.calls,
                "argument": door.argument,
                "proxy": door.proxy,
            }
        self._connection.control(wire.RUN, stream, body)
        self._requests[stream] = handle
        if door is not None:
            self._connection.data(stream, wire.CONTENT, b"".join(door.files), end=True)
        self._connection.data(stream, wire.ARGS, blob, end=True)
        if spec.stdin is not None:  # already in memory: queueing all of it costs nothing
            self._connection.data(stream, wire.STDIN, spec.stdin, end=not spec.interactive)
        self.flush()
        return handle

    async def wait(self, handle: RunHandle) -> None:
        """Wait for the run's report. A guest that does not report in time is lost.

        A caller whose `on_output` is slow may take longer: the guest has then done its part.
        """
        spec = handle.spec
        deadline = None if spec.timeout is None else spec.timeout + spec.grace + EXIT_MARGIN
        caller_was_slow = True
        stopped = 0.0
        while True:
            if await handle.reported(deadline):
                return
            if not handle.has_ended and handle.stopped > stopped:
                deadline = max(0.05, handle.stopped - stopped)  # what its clock stood still meanwhile
                stopped = handle.stopped
                continue
            slow = handle.waits_for_caller
            if not slow and not (caller_was_slow and handle.has_ended):
                error = SandboxLostError(f"the sandbox did not report the end of run {spec.run_id} in time")
                self.break_off(error)
                raise error
            # One round more after the caller caught up, for what the guest had to hold back.
            caller_was_slow = slow
            deadline = EXIT_MARGIN

    # -- files --

    @asynccontextmanager
    async def _file(self, body: dict[str, Any], on_item: Callable[[Any], None]) -> AsyncIterator[FileRequest]:
        stream = self._open_stream()
        request = FileRequest(self, stream, on_item)
        self._connection.control(wire.FILE, stream, body)
        self._requests[stream] = request
        try:
            yield request
        except BaseException:
            if not request.done.done():
                request.abandon()
            raise

    async def _reply(self, request: FileRequest, doing: str) -> dict[str, Any]:
        while True:
            seen = request.progress
            try:
                body = await asyncio.wait_for(asyncio.shield(request.done), STALL)
                break
            except TimeoutError:
                if request.progress == seen and not request.done.done():
                    raise self._stalled(doing) from None
        if "errno" in body:
            raise path_error(body["errno"], str(body.get("path", ""))[:1024], doing)
        return body

    async def put_files(self, base: bytes, pieces: Iterable[bytes], *, swap: bytes | None = None) -> None:
        """Write records (see `guest.records`) below `base`; with `swap`, as one folder, whole or not."""
        body: dict[str, Any] = {"op": "put", "base": base.decode("ascii")}
        if swap is not None:
            body["swap"] = swap.decode("utf-8", "surrogateescape")
        async with self._file(body, _no_items) as request:
            batch: list[bytes] = []
            size = 0
            for piece in pieces:
                batch.append(piece)
                size += len(piece)
                if size >= records.PIECE:
                    await self.send(request.stream, wire.CONTENT, b"".join(batch), doing="write")
                    batch, size = [], 0
                    if request.done.done():
                        break
            await self.send(request.stream, wire.CONTENT, b"".join(batch), end=True, doing="write")
            await self._reply(request, "write")

    async def list_files(
        self, paths: list[bytes], *, recursive: bool = True, unlock: bool = False
    ) -> Listing:
        """Everything below the folders, links named and not followed. `unlock`: while no run is under way,
        also what the modes of its folders hide from their owner; `get_files` has the same.
        """
        reader = ListingReader(paths)
        body = {"op": "list", "recursive": recursive, **({"unlock": True} if unlock else {})}
        await self._ask(body, paths, reader.item, "list")
        self._finish(reader)
        return reader.listing

    async def get_files(
        self,
        paths: list[bytes],
        *,
        limit: int,
        begin: Callable[[bytes, records.Record | int], None],
        chunk: Callable[[bytes], None],
        end: Callable[[int], None],
        links: bool = False,
        unlock: bool = False,
    ) -> None:
        """Read files, each at most `limit` bytes. The callbacks get each in the order asked for.

        With `links` a link comes as a LINK record with its target for content; else it is an error.
        """
        reader = ContentReader(paths, limit, begin, chunk, end, links=links)
        body = {"op": "get", "limit": limit, "links": links, **({"unlock": True} if unlock else {})}
        await self._ask(body, paths, reader.item, "read")
        self._finish(reader)

    def _finish(self, reader: ListingReader | ContentReader) -> None:
        try:
            reader.finish()
        except ProtocolError as error:
            raise self._breach(error) from None

    async def remove_files(self, paths: list[bytes]) -> None:
        """Remove files and folders; a missing one is no error."""
        await self._ask({"op": "remove"}, paths, _no_items, "remove")

    async def make_links(self, pairs: list[tuple[bytes, bytes]]) -> None:
        """Make symbolic links where nothing stands."""
        await self._ask({"op": "link"}, [name for pair in pairs for name in pair], _no_items, "link")

    async def _ask(
        self, body: dict[str, Any], names: list[bytes], on_item: Callable[[Any], None], doing: str
    ) -> None:
        blob = records.join_names(names)
        async with self._file(body, on_item) as request:
            await self.send(request.stream, wire.ARGS, blob, end=True, doing=doing)
            await self._reply(request, doing)


def _no_items(_item: Any) -> None:
    raise ProtocolError("the guest sent content where there is none")

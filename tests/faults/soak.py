"""The soak, in a process of its own: sessions opened, used and closed, some of them killed at any moment.

    python -m tests.faults.soak RUNTIME IMAGE COUNT RATE SEED

It prints one JSON object: what was there before and after (`traces`), and the host's memory along the way.
`test_soak.py` judges it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from typing import Any

from executor import AsyncExecutor, ExecutorError, Limits, Settings
from executor.runtimes.base import Sandbox, SandboxSpec
from tests.faults import traces

AT_ONCE = 4
LIMITS = Limits(memory="128m", disk="16m", tmp="4m", shm="4m", pids=32)
WORK = 'printf \'%s\' "$SEED" > out/answer; (sleep 60 &); echo "$SEED" | tr 0-9 a-j'
# A host process of its own, which is killed by the soak while its session does something.
CHILD = """
import asyncio, sys
from executor import AsyncExecutor, Settings
async def main():
    async with AsyncExecutor(settings=Settings(runtime=sys.argv[1], image=sys.argv[2], skills=())) as made:
        print("open", flush=True)
        while True:
            async with made.session() as session:
                await session.exec("sleep 0.1; echo x > out/file")
asyncio.run(main())
"""


class Soak:
    """One executor and what happens to its sessions."""

    def __init__(self, runtime: str, image: str, rate: float, seed: int) -> None:
        self.rate = rate
        self.runtime, self.image = runtime, image
        self.random = random.Random(seed)
        self.happened: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.started: dict[str, Sandbox] = {}

    async def run(self, count: int) -> dict[str, Any]:
        settings = Settings(
            runtime=self.runtime, image=self.image, skills=(), limits=LIMITS, reap_interval=0.5
        )
        async with AsyncExecutor(settings=settings) as made:
            self._watch(made)
            await self._sessions(made, AT_ONCE)  # modules are there afterwards
            await self._fill_pools(made)
            before = await self._look(made)
            began = time.monotonic()
            memory = []
            looks = 10 if count >= 100 else 1
            for _ in range(looks):
                await self._sessions(made, count // looks)
                memory.append(await self._look(made))
            seconds = time.monotonic() - began
        return {
            "before": before,
            "along": memory,
            "happened": self.happened,
            "wrong": self.wrong,
            "seconds": round(seconds, 1),
        }

    async def _fill_pools(self, made: AsyncExecutor) -> None:
        """Every thread that the loop may have, each with its connection to the engine."""
        api = getattr(made._runtime, "_api", None)
        at_once = threading.Barrier(min(32, (os.cpu_count() or 1) + 4))  # as `ThreadPoolExecutor` counts

        def use() -> None:
            at_once.wait(20)
            if api is not None:
                api.ping()
            at_once.wait(20)

        await asyncio.gather(*(asyncio.to_thread(use) for _ in range(at_once.parties)))

    def _watch(self, made: AsyncExecutor) -> None:
        runtime = made._runtime
        assert runtime is not None
        start = runtime.start

        async def recording(spec: SandboxSpec) -> Sandbox:
            sandbox = await start(spec)
            self.started[spec.session_id] = sandbox
            return sandbox

        runtime.start = recording  # type: ignore[method-assign]

    async def _sessions(self, made: AsyncExecutor, count: int) -> None:
        left = iter(range(count))

        async def worker() -> None:
            for _ in left:
                await self._one(made)

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
        self.started.clear()

    async def _one(self, made: AsyncExecutor) -> None:
        fate = self.random.choice(FATES) if self.random.random() < self.rate else "lives"
        try:
            await getattr(self, f"_{fate}")(made)
        except ExecutorError as error:
            self.happened[type(error).__name__] += 1
            if fate == "lives":
                self.wrong.append(str(error))
        except asyncio.CancelledError:
            self.happened["cancelled"] += 1
        self.happened[fate] += 1

    async def _lives(self, made: AsyncExecutor) -> None:
        seed = str(self.random.randrange(10**9))
        async with made.session() as session:
            await session.put("inputs/seed", seed)
            result = await session.exec(WORK, env={"SEED": seed}, outputs=["out/**"], timeout=60)
            wanted = seed.translate(str.maketrans("0123456789", "abcdefghij")) + "\n"
            files = [(file.path, file.content) for file in result.files]
            if (result.status, result.stdout, files) != ("ok", wanted, [("out/answer", seed)]):
                self.wrong.append(f"{result.status} {result.stdout!r} {files} {result.warnings}")

    async def _sandbox_killed(self, made: AsyncExecutor) -> None:
        session = made.session()
        use = asyncio.ensure_future(session.exec(WORK + "; sleep 1", env={"SEED": "1"}))
        await asyncio.sleep(self.random.random() * 0.5)
        if (sandbox := self.started.get(session.id)) is not None:
            with contextlib.suppress(OSError, LookupError, KeyError):
                os.kill(await asyncio.to_thread(traces.guest_pid, sandbox), signal.SIGKILL)
        try:
            await use
        finally:
            await session.close()

    async def _task_cancelled(self, made: AsyncExecutor) -> None:
        session = made.session()
        use = asyncio.ensure_future(session.exec(WORK + "; sleep 1", env={"SEED": "1"}))
        await asyncio.sleep(self.random.random() * 0.5)
        use.cancel()
        try:
            await use
        finally:
            await session.close()

    async def _session_closed(self, made: AsyncExecutor) -> None:
        session = made.session()
        use = asyncio.ensure_future(session.exec(WORK + "; sleep 1", env={"SEED": "1"}))
        await asyncio.sleep(self.random.random() * 0.5)
        await session.close()
        await use

    async def _host_killed(self, _made: AsyncExecutor) -> None:
        words = [sys.executable, "-c", CHILD, self.runtime, self.image]
        child = await asyncio.to_thread(subprocess.Popen, words, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            await asyncio.to_thread(child.stdout.readline)
            await asyncio.sleep(self.random.random() * 0.5)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()

    async def _look(self, made: AsyncExecutor) -> dict[str, Any]:
        """What there is while no session is open."""
        api = getattr(made._runtime, "_api", None)

        def counts() -> dict[str, Any]:
            gc.collect()
            found: dict[str, Any] = {**traces.remains(), "groups": traces.cgroups_of_the_dead()}
            found["temporary"] = sorted(os.listdir(tempfile.gettempdir()))
            found["threads"] = traces.threads()
            if api is not None:
                found["containers"] = [entry["Names"] for entry in api.containers(all=True)]
                found["volumes"] = api.volumes()["Volumes"] or []
            return found

        seen: dict[str, Any] = {}

        def nothing() -> bool:
            seen.clear()
            seen.update(counts())
            return not (seen.get("containers") or seen["groups"])

        # What a killed host left, or one of others meanwhile, needs a moment, and the reaper, to go.
        await traces.settled(nothing, 60)
        return {**seen, "files": traces.files(), "resident_kb": traces.resident_kb()}


FATES = ("sandbox_killed", "task_cancelled", "session_closed", "host_killed")


def main() -> None:
    runtime, image, count, rate, seed = sys.argv[1:]
    print(json.dumps(asyncio.run(Soak(runtime, image, float(rate), int(seed)).run(int(count)))))


if __name__ == "__main__":
    main()

"""Ordinary Python work. Everything here must go on working, however tight the sandbox becomes."""

import asyncio
import concurrent.futures
import contextlib
import ctypes
import fcntl
import getpass
import hashlib
import http.server
import io
import json
import locale
import logging
import mmap
import multiprocessing
import multiprocessing.shared_memory
import os
import platform
import pty
import random
import resource
import secrets
import select
import selectors
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import urllib.request
import uuid
import zipfile
import zoneinfo

os.chdir(tempfile.mkdtemp(dir="/workspace/work" if os.path.isdir("/workspace/work") else None))


def square(number):
    return number * number


def threads():
    results = []
    workers = [threading.Thread(target=lambda n=n: results.append(n)) for n in range(20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sorted(results) == list(range(20))


def thread_pool():
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        return list(pool.map(square, range(50)))[-1] == 2401


def process_pool():
    with multiprocessing.Pool(3) as pool:
        return sum(pool.map(square, range(20))) == 2470


def process_spawn():
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=queue.put, args=(42,))
    worker.start()
    got = queue.get(timeout=20)
    worker.join()
    return got == 42


def process_futures():
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        return pool.submit(square, 7).result(timeout=20) == 49


def shared_memory():
    block = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
    block.buf[0] = 7
    other = multiprocessing.shared_memory.SharedMemory(block.name)
    got = other.buf[0]
    other.close()
    block.close()
    block.unlink()
    return got == 7


def locks_between_processes():
    lock = multiprocessing.Lock()
    with lock:
        return not lock.acquire(block=False)


def run_subprocess():
    done = subprocess.run(["sort", "-n"], input="3\n1\n2\n", capture_output=True, text=True, check=True)
    return done.stdout == "1\n2\n3\n"


def subprocess_shell():
    return subprocess.check_output("echo $((6*7)) | tr 4 x", shell=True, text=True) == "x2\n"


def subprocess_timeout():
    try:
        subprocess.run(["sleep", "30"], timeout=0.2)
    except subprocess.TimeoutExpired:
        return True
    return False


def asyncio_subprocess():
    async def main():
        process = await asyncio.create_subprocess_exec("echo", "hi", stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0]

    return asyncio.run(main()) == b"hi\n"


def asyncio_sockets():
    async def main():
        async def answer(reader, writer):
            writer.write((await reader.readline()).upper())
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        return await reader.read()

    return asyncio.run(main()) == b"HELLO\n"


def http_loopback():
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with urllib.request.urlopen("http://localhost:%d/" % server.server_port, timeout=10) as answer:
        return answer.status == 200


def unix_socket():
    server = socket.socket(socket.AF_UNIX)
    server.bind("own.sock")
    server.listen(1)
    client = socket.socket(socket.AF_UNIX)
    client.connect("own.sock")
    peer, _ = server.accept()
    peer.sendall(b"x")
    return client.recv(1) == b"x"


def sqlite():
    with contextlib.closing(sqlite3.connect("data.db")) as database:
        database.execute("pragma journal_mode=wal")
        database.execute("create table t(a)")
        database.executemany("insert into t values (?)", [(n,) for n in range(1000)])
        database.commit()
        return database.execute("select sum(a) from t").fetchone() == (499500,)


def temporary_files():
    with tempfile.NamedTemporaryFile() as file, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX)
        return os.path.isdir(folder)


def archives():
    with open("a.txt", "w") as file:
        file.write("a" * 1000)
    with zipfile.ZipFile("a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write("a.txt")
    for mode in ("gz", "bz2", "xz"):
        with tarfile.open("a.tar." + mode, "w:" + mode) as archive:
            archive.add("a.txt")
    shutil.copytree(".", "../copy-%d" % os.getpid(), ignore=shutil.ignore_patterns("*.sock"))
    return zipfile.ZipFile("a.zip").read("a.txt") == b"a" * 1000


def files_at_large():
    os.makedirs("deep/er/est")
    os.symlink("deep", "link")
    os.link("a.txt", "hard")
    os.mkfifo("fifo")
    os.rename("hard", "moved")
    os.chmod("moved", 0o600)
    os.utime("moved", (1, 1))
    os.truncate("moved", 10)
    os.setxattr("moved", "user.note", b"x") if hasattr(os, "setxattr") and False else None
    return os.stat("moved").st_size == 10 and os.path.exists("link/er/est")


def memory_map():
    with open("map", "wb") as file:
        file.truncate(8192)
    with open("map", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[:5] = b"hello"
        view.flush()
    return open("map", "rb").read(5) == b"hello"


def executable_memory():
    """What a just-in-time compiler needs."""
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    codes = {"x86_64": b"\xb8\x2a\0\0\0\xc3", "aarch64": b"\x40\x05\x80\x52\xc0\x03\x5f\xd6"}
    memory.write(codes[platform.machine()])
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))() == 42


def signals_and_timers():
    rang = []
    signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(0.3)
    return rang == [1]


def terminal():
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp("stty", ["stty", "size"])
    said = b""
    with contextlib.suppress(OSError):
        while piece := os.read(fd, 100):
            said += piece
    os.waitpid(pid, 0)
    return said.split() == [b"0", b"0"]


def polling():
    read, write = os.pipe()
    poll = select.epoll()
    poll.register(read, select.EPOLLIN)
    os.write(write, b"x")
    with selectors.DefaultSelector() as selector:
        selector.register(read, selectors.EVENT_READ)
        return bool(poll.poll(1)) and bool(selector.select(1))


def who_am_i():
    return bool(getpass.getuser()) and os.path.isdir(os.path.expanduser("~")) and bool(platform.platform())


def own_limits():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    return os.nice(1) >= 1 and os.getpriority(os.PRIO_PROCESS, 0) >= 1


def chance_and_time():
    return len({uuid.uuid4(), secrets.token_hex(), random.random()}) == 3 and time.time() > 1e9


def locale_and_zones():
    locale.setlocale(locale.LC_ALL, "")
    return (
        "ä".upper() == "Ä" and sys.getfilesystemencoding() == "utf-8" and zoneinfo.ZoneInfo("UTC") is not None
    )


def home_and_cache():
    path = os.path.join(os.path.expanduser("~"), "note")
    with open(path, "w") as file:
        file.write("x")
    os.unlink(path)
    return True


def logging_and_json():
    stream = io.StringIO()
    logging.basicConfig(stream=stream, level=logging.INFO, force=True)
    logging.info(json.dumps({"a": [1, 2.5, None]}))
    return "2.5" in stream.getvalue() and hashlib.sha256(b"").hexdigest().startswith("e3b0")


def bytecode():
    with open("module_of_mine.py", "w") as file:
        file.write("ANSWER = 42\n")
    sys.path.insert(0, os.getcwd())
    import module_of_mine

    return module_of_mine.ANSWER == 42


WORK = (
    threads, thread_pool, process_pool, process_spawn, process_futures, shared_memory, locks_between_processes,
    run_subprocess, subprocess_shell, subprocess_timeout, asyncio_subprocess, asyncio_sockets, http_loopback,
    unix_socket, sqlite, temporary_files, archives, files_at_large, memory_map, executable_memory,
    signals_and_timers, terminal, polling, who_am_i, own_limits, chance_and_time, locale_and_zones,
    home_and_cache, logging_and_json, bytecode,
)  # fmt: skip
if __name__ == "__main__":
    for work in WORK:
        try:
            ok, detail = work() is True, ""
        except BaseException:
            ok, detail = False, traceback.format_exc().strip().splitlines()[-1]
        print("CHECK", work.__name__, "OK" if ok else "BAD", detail, flush=True)

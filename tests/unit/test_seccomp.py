"""The system call policy: what it decides, that its two forms agree, and that a real sandbox obeys it."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import hashlib
import json
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from executor.errors import PlatformError
from executor.runtimes import seccomp
from executor.runtimes.seccomp import (
    ALLOWED,
    ARGUMENT_RULES,
    NOT_IMPLEMENTED,
    NOT_SUPPORTED,
    REFUSED,
    OnlyIf,
)
from executor.runtimes.syscalls import NUMBERS

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
ENOTSUP = 0x50000 | errno.ENOTSUP
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM, MIPS = 0x40000003, 0x40000028, 0x80000008
MACHINES = sorted(NUMBERS)
HIGH = 1 << 32  # a bit of an argument that the kernel drops when it cuts it to 32 bits
X32 = 0x40000000


# --- What a kernel does with a program --------------------------------------------------------------------


class Program:
    """The kernel's interpreter, as far as seccomp lets a program use it, strict about everything else."""

    def __init__(self, code: bytes) -> None:
        self.instructions: list[tuple[int, int, int, int]] = list(struct.iter_unpack("=HBBI", code))
        self.steps = 0

    def __call__(self, architecture: int, number: int, *args: int) -> int:
        words = [arg & 0xFFFFFFFFFFFFFFFF for arg in args] + [0] * (6 - len(args))
        data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, architecture, 0x7F0000001000, *words)
        at = accumulator = self.steps = 0
        while True:
            code, jump_true, jump_false, k = self.instructions[at]
            at += 1
            self.steps += 1
            if code == 0x06:  # return k
                return k
            elif code == 0x20:  # load the word at k
                assert k % 4 == 0 and k < len(data)
                accumulator = int.from_bytes(data[k : k + 4], "little")
            elif code == 0x54:
                accumulator &= k
            elif code == 0x05:
                at += k
            else:
                test = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[code]
                at += jump_true if test else jump_false


PROGRAMS = {machine: Program(seccomp.bpf_program(machine)) for machine in MACHINES}
PROFILE: dict[str, Any] = json.loads(seccomp.docker_profile())
NAMES = {machine: {number: name for name, number in NUMBERS[machine].items()} for machine in MACHINES}


def names_of(table: Any) -> list[str]:
    return [name for names in table.values() for name in names.split()]


FREE, ABSENT = set(names_of(ALLOWED)), set(names_of(NOT_IMPLEMENTED))
NEWEST = {
    machine: max(numbers[n] for s in PROFILE["syscalls"] for n in s["names"] if n in numbers)
    for machine, numbers in NUMBERS.items()
}


# --- The policy, evaluated in the two plainest ways -------------------------------------------------------


def by_tables(machine: str, number: int, args: tuple[int, ...]) -> int:
    """The verdict from the policy's own tables."""
    if machine == "x86_64" and number & X32:
        return KILL
    name = NAMES[machine].get(number)
    if name is None:
        return EPERM if number < max(NAMES[machine]) else ENOSYS
    if name in FREE:
        return ALLOW
    if name in ABSENT:
        return ENOSYS
    if name in names_of(NOT_SUPPORTED):
        return ENOTSUP
    rule = ARGUMENT_RULES.get(name)
    if rule is None:
        return EPERM
    low = [arg % HIGH for arg in args]
    if isinstance(rule, OnlyIf):
        good = any(all(low[arg.index] & arg.mask == arg.value for arg in way) for way in rule.ways)
    else:
        good = low[rule.index] not in rule.values
    return ALLOW if good else EPERM


def by_profile(machine: str, number: int, args: tuple[int, ...]) -> int:
    """The verdict of an engine on the Docker profile: the first entry that matches, else the default."""
    if machine == "x86_64" and number & X32:
        return KILL  # the answer to an architecture that is not listed
    if number > NEWEST[machine]:
        return ENOSYS  # runc puts this check in front
    compare: dict[str, Callable[[int, int, int], bool]] = {
        "SCMP_CMP_MASKED_EQ": lambda actual, mask, value: actual & mask == value
    }
    for entry in PROFILE["syscalls"]:
        if NAMES[machine].get(number) in entry["names"] and all(
            compare[a["op"]](args[a["index"]], a["value"], a["valueTwo"]) for a in entry.get("args", [])
        ):
            return ALLOW if entry["action"] == "SCMP_ACT_ALLOW" else 0x50000 | int(entry["errnoRet"])
    return 0x50000 | int(PROFILE["defaultErrnoRet"])


# Arguments near every boundary a rule has, with and without dropped high bits, and anything else.
INTERESTING = sorted(
    {
        (base + delta) % (1 << 64)
        for base in (
            0,
            1,
            2,
            4,
            10,
            16,
            22,
            40,
            62,
            0o4000,
            0x40000,
            0x5412,
            0x541C,
            0x5423,
            0x20000,
            0x02000000,
            0x7E020000,
            0xFFFFFFFF,
        )
        for delta in (-1, 0, 1)
    }
)
ARGUMENT = st.one_of(
    st.sampled_from(INTERESTING),
    st.sampled_from(INTERESTING).map(lambda value: value | HIGH),
    st.integers(0, 2**64 - 1),
)
ARGUMENTS = st.tuples(*[ARGUMENT] * 6)


# --- Verdicts ---------------------------------------------------------------------------------------------

VERDICTS: list[tuple[str, tuple[int, ...], int]] = [
    # ordinary work
    *((name, (), ALLOW) for name in ("read", "write", "openat", "mmap", "execve", "exit_group", "futex")),
    *((name, (), ALLOW) for name in ("statx", "openat2", "faccessat2", "close_range", "copy_file_range")),
    *((name, (), ALLOW) for name in ("getrandom", "memfd_create", "rseq", "membarrier", "getxattr", "prctl")),
    *((name, (), ALLOW) for name in ("pidfd_open", "pidfd_send_signal", "futex_waitv", "epoll_pwait2")),
    *((name, (), ALLOW) for name in ("landlock_create_ruleset", "landlock_restrict_self", "mknodat")),
    *((name, (), ALLOW) for name in ("sched_setaffinity", "kill", "bind", "connect", "setuid", "adjtimex")),
    # what a script must not reach
    *((name, (), EPERM) for name in ("ptrace", "process_vm_readv", "process_vm_writev", "kcmp")),
    *((name, (), EPERM) for name in ("pidfd_getfd", "process_madvise", "memfd_secret", "keyctl", "add_key")),
    *((name, (), EPERM) for name in ("request_key", "name_to_handle_at", "open_by_handle_at", "mbind")),
    *((name, (), EPERM) for name in ("mount", "umount2", "pivot_root", "chroot", "unshare", "setns")),
    *((name, (), EPERM) for name in ("fsopen", "open_tree", "move_mount", "mount_setattr", "quotactl")),
    *((name, (), EPERM) for name in ("bpf", "perf_event_open", "userfaultfd", "fanotify_init", "syslog")),
    *((name, (), EPERM) for name in ("init_module", "kexec_load", "reboot", "swapon", "acct", "vhangup")),
    *((name, (), EPERM) for name in ("clock_settime", "settimeofday", "sethostname", "lookup_dcookie")),
    # what a library does without
    *((name, (0, 0), ENOSYS) for name in ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")),
    *((name, (0, 0), ENOSYS) for name in ("io_setup", "io_submit", "io_destroy", "io_getevents")),
    # what a copying program does without
    *((name, (), ENOTSUP) for name in ("setxattr", "lsetxattr", "fsetxattr", "setxattrat")),
    *((name, (), ALLOW) for name in ("lgetxattr", "flistxattr", "removexattr")),
    # what the machine has one of
    ("mmap", (0, 4096, 3, 0x22), ALLOW),
    *(("mmap", (0, 4096, 3, flags), EPERM) for flags in (0x40022, 0x5400_0022 | 0x40000, HIGH | 0x40022)),
    ("mmap", (0, 4096, 3, 0x4022), ALLOW),
    ("memfd_create", (0, 3), ALLOW),
    ("memfd_create", (0, 4), EPERM),
    ("memfd_create", (0, 21 << 26 | 7), EPERM),
    ("shmget", (0, 4096, 0o1600), ALLOW),
    ("shmget", (0, 4096, 0o5600), EPERM),
    ("seccomp", (1,), EPERM),
    *(("prctl", (option,), ALLOW) for option in (1, 4, 15, 21, 38)),
    *(("prctl", (option,), EPERM) for option in (22, 62, HIGH | 22)),
    # what makes others wait
    *(("fcntl", (3, command), ALLOW) for command in (0, 1, 4, 7, 9, 38, 1025, 1026, 1030, 1031, 1033, 1039)),
    *(("fcntl", (3, command), EPERM) for command in (1024, 1040, HIGH | 1024)),
    # socket families
    *(("socket", (family, 1, 0), ALLOW) for family in (1, 2, 10)),
    *(("socket", (family, 1, 0), EPERM) for family in (0, 3, 9, 11, 15, 17, 21, 29, 30, 31, 38, 40, 43, 44)),
    ("socket", (16, 3, 0), ALLOW),
    *(("socket", (16, 3, protocol), EPERM) for protocol in (4, 5, 6, 9, 12, 15, 16, 21)),
    ("socketpair", (1, 1, 0), ALLOW),
    ("socketpair", (30, 1, 0), EPERM),
    ("socket", (HIGH | 40, 1, 0), EPERM),  # the kernel sees 40
    ("socket", (HIGH | 2, 1, 0), ALLOW),  # the kernel sees 2: leftovers in a register are not an offence
    ("socket", (16, 3, HIGH | 15), EPERM),
    ("socket", (2**64 - 1, 1, 0), EPERM),
    # only oneself
    *((name, (0,), ALLOW) for name in ("prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr")),
    *((name, (1,), EPERM) for name in ("prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr")),
    ("prlimit64", (HIGH | 1,), EPERM),
    ("prlimit64", (2**64 - 1,), EPERM),
    ("setpriority", (0, 0, 5), ALLOW),
    ("setpriority", (0, 1, 5), EPERM),
    ("setpriority", (1, 0, 5), EPERM),  # the process group
    ("setpriority", (2, 0, 5), EPERM),  # the user, guest included
    ("ioprio_set", (1, 0, 0x6000), ALLOW),
    ("ioprio_set", (1, 1, 0x6000), EPERM),
    ("ioprio_set", (2, 0, 0x6000), EPERM),
    # threads and processes, not namespaces
    ("clone", (0x3D0F00,), ALLOW),
    ("clone", (17,), ALLOW),
    ("clone", (0x4111,), ALLOW),
    *(("clone", (1 << bit | 17,), EPERM) for bit in (17, 25, 26, 27, 28, 29, 30)),
    ("clone", (HIGH | 0x10000011,), EPERM),
    ("personality", (0,), ALLOW),
    ("personality", (0xFFFFFFFF,), ALLOW),
    ("personality", (2**64 - 1,), ALLOW),  # -1 as a long: the same question to the kernel
    *(("personality", (value,), EPERM) for value in (8, 0x20000, 0x40000, 0x400000, HIGH | 0x40000)),
    # terminals
    *(("ioctl", (0, request), ALLOW) for request in (0x5401, 0x5411, 0x5413, 0x541B, 0x541D, 0x5422, 0x5424)),
    *(("ioctl", (0, request), ALLOW) for request in (0, 0x5413 | HIGH, 0x8004_5412, 0xFFFFFFFF_80045430)),
    *(("ioctl", (0, request), EPERM) for request in (0x5412, 0x541C, 0x5423)),
    *(("ioctl", (0, HIGH | request), EPERM) for request in (0x5412, 0x541C, 0x5423)),
    *(("ioctl", (0, (1 << 63) | request), EPERM) for request in (0x5412, 0x541C, 0x5423)),
]


@pytest.mark.parametrize("machine", MACHINES)
def test_the_verdicts(machine: str) -> None:
    program = PROGRAMS[machine]
    wrong = [
        (name, args, hex(expected), hex(actual))
        for name, args, expected in VERDICTS
        if name in NUMBERS[machine]
        and (actual := program(ARCHITECTURES[machine], NUMBERS[machine][name], *args)) != expected
    ]
    assert not wrong


def test_x32_calls_are_killed() -> None:
    program, architecture = PROGRAMS["x86_64"], ARCHITECTURES["x86_64"]
    for number in (0, 39, 59, 512, 547, 0x80000000):
        assert program(architecture, X32 | number) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_by_a_foreign_architecture_are_killed(machine: str) -> None:
    foreign = [I386, ARM, MIPS, 0, *(a for m, a in ARCHITECTURES.items() if m != machine)]
    for architecture in foreign:
        assert {PROGRAMS[machine](architecture, number) for number in (0, 1, 20, 39, 102, 500)} == {KILL}


@pytest.mark.parametrize("machine", MACHINES)
def test_unknown_numbers_are_refused(machine: str) -> None:
    """In a gap as not permitted; beyond the newest known call as not there, so that callers fall back."""
    newest = max(NAMES[machine])
    run = PROGRAMS[machine]
    gaps = [number for number in range(newest) if number not in NAMES[machine]]
    assert gaps
    assert {run(ARCHITECTURES[machine], number) for number in gaps} == {EPERM}
    for number in (newest + 1, 600, 0x3FFFFFFF, 0x80000000):
        assert run(ARCHITECTURES[machine], number) == ENOSYS


def test_a_machine_without_numbers_is_an_error_that_names_it() -> None:
    with pytest.raises(PlatformError, match="riscv64"):
        seccomp.bpf_program("riscv64")
    assert seccomp.bpf_program("arm64") == seccomp.bpf_program("aarch64")


# --- One policy, two forms --------------------------------------------------------------------------------


def check_agreement(machine: str, number: int, args: tuple[int, ...]) -> None:
    expected = by_tables(machine, number, args)
    assert PROGRAMS[machine](ARCHITECTURES[machine], number, *args) == expected, (number, args)
    assert by_profile(machine, number, args) == expected, (number, args)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_forms_agree_on_every_number(machine: str) -> None:
    for number in range(max(NAMES[machine]) + 3):
        for args in ((0,) * 6, (1,) * 6, (0xFFFFFFFF,) * 6):
            check_agreement(machine, number, args)


@given(machine=st.sampled_from(MACHINES), rule=st.sampled_from(sorted(ARGUMENT_RULES)), args=ARGUMENTS)
@example(machine="x86_64", rule="ioctl", args=(0, HIGH | 0x5412, 0, 0, 0, 0))
def test_the_forms_agree_on_arguments(machine: str, rule: str, args: tuple[int, ...]) -> None:
    check_agreement(machine, NUMBERS[machine][rule], args)


@given(machine=st.sampled_from(MACHINES), number=st.integers(0, 2**32 - 1), args=ARGUMENTS)
def test_the_forms_agree_on_anything(machine: str, number: int, args: tuple[int, ...]) -> None:
    check_agreement(machine, number, args)


# --- The tables -------------------------------------------------------------------------------------------


def test_every_call_has_exactly_one_decision() -> None:
    decided = [*names_of(ALLOWED), *ARGUMENT_RULES, *names_of(NOT_IMPLEMENTED), *names_of(REFUSED)]
    decided += names_of(NOT_SUPPORTED)
    assert len(decided) == len(set(decided))
    assert set(decided) == {name for numbers in NUMBERS.values() for name in numbers}


def test_the_policy_changes_only_on_purpose() -> None:
    """A change here is a change of the sandbox's boundary: say why in the commit, then update the numbers."""
    counts = (
        len(names_of(ALLOWED)),
        len(ARGUMENT_RULES),
        len(names_of(NOT_IMPLEMENTED)),
        len(names_of(NOT_SUPPORTED)),
        len(names_of(REFUSED)),
    )
    assert counts == (275, 16, 10, 4, 74)
    canonical = json.dumps(PROFILE, sort_keys=True).encode()
    assert hashlib.sha256(canonical).hexdigest()[:16] == "4054c75f0ab94587"


def test_the_numbers_are_those_of_the_kernel_headers() -> None:
    assert {machine: len(numbers) for machine, numbers in NUMBERS.items()} == {"x86_64": 379, "aarch64": 322}
    for machine, name, number in (
        ("x86_64", "getpid", 39),
        ("x86_64", "prlimit64", 302),
        ("x86_64", "uretprobe", 335),
        ("aarch64", "getpid", 172),
        ("aarch64", "clone", 220),
        ("aarch64", "statx", 291),
    ):
        assert NUMBERS[machine][name] == number
    newer = [name for name, number in NUMBERS["x86_64"].items() if number >= 424]
    assert len(newer) == 43
    assert all(NUMBERS["x86_64"][name] == NUMBERS["aarch64"][name] for name in newer)
    for numbers in NUMBERS.values():
        assert len(set(numbers.values())) == len(numbers)


# --- The forms themselves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_the_program_is_short_and_quick(machine: str) -> None:
    program = PROGRAMS[machine]
    assert len(program.instructions) < 300  # the kernel's limit is 4096
    steps = []
    for number in NAMES[machine]:
        program(ARCHITECTURES[machine], number)
        steps.append(program.steps)
    assert max(steps) <= 22
    assert sum(steps) / len(steps) < 14


@pytest.mark.parametrize("machine", MACHINES)
def test_the_program_passes_the_kernels_checks(machine: str) -> None:
    """Jumps stay inside, every instruction can be reached, and no path runs off the end."""
    instructions = PROGRAMS[machine].instructions
    reached, todo = set(), [0]
    while todo:
        at = todo.pop()
        assert at < len(instructions)
        if at in reached:
            continue
        reached.add(at)
        code, jump_true, jump_false, k = instructions[at]
        assert code in {0x06, 0x20, 0x54, 0x05, 0x15, 0x35, 0x45}
        if code == 0x05:
            todo.append(at + 1 + k)
        elif code in {0x15, 0x35, 0x45}:
            todo += [at + 1 + jump_true, at + 1 + jump_false]
        elif code != 0x06:
            todo.append(at + 1)
    assert reached == set(range(len(instructions)))


def test_a_search_too_long_for_a_short_jump_still_works() -> None:
    """Conditional jumps reach 255 instructions; a larger policy needs more."""
    rules = [(number, EPERM if number % 2 else ALLOW) for number in range(600)]
    search = seccomp._search(rules)
    code = b"".join(struct.pack("=HBBI", *i) for i in [(0x20, 0, 0, 0), *search])
    program = Program(code)
    assert any(i[0] == 0x05 for i in program.instructions)
    assert [program(0, number) for number in range(600)] == [verdict for _, verdict in rules]


def test_the_profile_is_what_old_and_new_engines_read() -> None:
    assert PROFILE["defaultAction"] == "SCMP_ACT_ERRNO"
    assert PROFILE["defaultErrnoRet"] == errno.EPERM
    assert PROFILE["archMap"] == [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
    ]
    assert "architectures" not in PROFILE  # engines refuse both lists together
    for entry in PROFILE["syscalls"]:
        # An old engine's entry is the default action without errnoRet; libseccomp refuses such an entry.
        assert (entry["action"], entry.get("errnoRet")) in {
            ("SCMP_ACT_ALLOW", None),
            ("SCMP_ACT_ERRNO", errno.ENOSYS),
            ("SCMP_ACT_ERRNO", errno.ENOTSUP),
        }
        indexes = [arg["index"] for arg in entry.get("args", [])]
        assert len(indexes) == len(set(indexes))  # runc reads a repeated index as "or"
        assert all(arg["value"] < HIGH and arg["valueTwo"] < HIGH for arg in entry.get("args", []))


def test_names_refused_are_not_in_the_profile() -> None:
    named = {name for entry in PROFILE["syscalls"] for name in entry["names"]}
    assert not named & set(names_of(REFUSED))


# --- The Docker form, compiled as runc does ---------------------------------------------------------------


class _Comparison(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def compile_with_libseccomp(library: ctypes.CDLL, architecture: int) -> tuple[Program, set[str]]:
    """The program that libseccomp makes of the profile, and the names it does not know."""
    masked_equal, pointer = 7, ctypes.c_void_p
    library.seccomp_init.restype = pointer
    for function in ("seccomp_arch_add", "seccomp_arch_remove", "seccomp_release", "seccomp_export_bpf"):
        getattr(library, function).argtypes = [pointer, ctypes.c_uint32]
    library.seccomp_release.argtypes = [pointer]
    library.seccomp_rule_add_array.argtypes = [pointer, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, pointer]
    context, unknown = library.seccomp_init(EPERM), set()
    try:
        library.seccomp_arch_native.restype = ctypes.c_uint32
        native = library.seccomp_arch_native()
        if architecture != native:
            assert library.seccomp_arch_add(context, architecture) == 0
            assert library.seccomp_arch_remove(context, native) == 0
        for entry in PROFILE["syscalls"]:
            args = [
                _Comparison(a["index"], masked_equal, a["value"], a["valueTwo"])
                for a in entry.get("args", [])
            ]
            action = ALLOW if entry["action"] == "SCMP_ACT_ALLOW" else 0x50000 | entry["errnoRet"]
            for name in entry["names"]:
                number = library.seccomp_syscall_resolve_name(name.encode())
                if number == -1:
                    unknown.add(name)
                    continue
                array = (_Comparison * max(1, len(args)))(*args)
                assert library.seccomp_rule_add_array(context, action, number, len(args), array) == 0, name
        with tempfile.TemporaryFile() as file:
            assert library.seccomp_export_bpf(context, file.fileno()) == 0
            file.seek(0)
            return Program(file.read()), unknown
    finally:
        library.seccomp_release(context)


@pytest.mark.parametrize("machine", MACHINES)
def test_libseccomp_reads_the_profile_as_we_do(machine: str) -> None:
    found = ctypes.util.find_library("seccomp")
    if found is None:
        pytest.skip("libseccomp is not installed")
    program, unknown = compile_with_libseccomp(ctypes.CDLL(found), ARCHITECTURES[machine])
    samples = [value | high for value in INTERESTING for high in (0, HIGH)]
    few = [0, 1, 15, HIGH, HIGH | 15]
    for number, name in NAMES[machine].items():
        if name in unknown:
            continue
        spread = [(0, 0)]
        if name in ARGUMENT_RULES:
            spread = [(a, b) for a in samples for b in few] + [(a, b) for a in few for b in samples]
        for first, second in spread:
            args = (first, second, second, 0, 0, 0)
            expected = by_tables(machine, number, args)
            assert program(ARCHITECTURES[machine], number, *args) == expected, (name, args)


# --- A real sandbox ---------------------------------------------------------------------------------------

BWRAP = shutil.which("bwrap")

PROBES = r"""
import ctypes, errno, json, mmap, os, sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
null = os.open("/dev/null", os.O_RDWR)
memory = ctypes.addressof(ctypes.create_string_buffer(4096))


def call(number, *args):
    args = [memory if a == "memory" else null if a == "null" else a for a in args]
    done = libc.syscall(*map(ctypes.c_long, [number, *args])) >= 0
    return "done" if done else errno.errorcode[ctypes.get_errno()]


def i386(number):
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(b"\xb8" + number.to_bytes(4, "little") + b"\xcd\x80\xc3")  # mov eax, number; int 0x80; ret
    code = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return "done" if code() >= 0 else "failed"


def probe(how, *args):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, {"call": call, "i386": i386}[how](*args).encode())
        os._exit(0)
    os.close(write)
    answer = os.read(read, 100).decode()
    status = os.waitpid(child, 0)[1]
    os.close(read)
    return "signal %d" % os.WTERMSIG(status) if os.WIFSIGNALED(status) else answer


print(json.dumps({name: probe(*args) for name, args in json.loads(sys.argv[1]).items()}))
"""

ORDINARY = r"""
import asyncio, fcntl, json, multiprocessing, os, resource, socket, sqlite3, subprocess, tempfile, threading

os.chdir(tempfile.mkdtemp(dir=os.environ["HOME"]))
threads = [threading.Thread(target=os.getpid) for _ in range(10)]
[t.start() for t in threads], [t.join() for t in threads]
db = sqlite3.connect("t.db")
db.execute("create table t (a)"), db.execute("insert into t values (1)"), db.commit()
with open("lock", "w") as f:
    fcntl.flock(f, fcntl.LOCK_EX)
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
server.accept()[0].sendall(b"hello")
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.nice(1)
os.mkfifo("fifo")


async def child():
    process = await asyncio.create_subprocess_exec("echo", "async", stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode().strip()


with multiprocessing.get_context("fork").Pool(2) as pool:
    forked = pool.map(abs, [-1, -2])
with multiprocessing.get_context("forkserver").Pool(1) as pool:
    served = pool.map(abs, [-3])

print(json.dumps({
    "sqlite": db.execute("select count(*) from t").fetchone()[0],
    "socket": client.recv(5).decode(),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "subprocess": subprocess.check_output(["bash", "-c", "seq 100 | tail -1; ulimit -c 0"], text=True),
    "asyncio": asyncio.run(child()),
    "pool": forked,
    "spawn": served,
}))
"""


def in_sandbox(script: str, *args: str, filtered: bool, folder: Path) -> subprocess.CompletedProcess[str]:
    assert BWRAP is not None
    command = [BWRAP, "--unshare-all", "--unshare-user", "--cap-drop", "ALL", "--die-with-parent"]
    command += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(folder), str(folder)]
    command += ["--clearenv", "--setenv", "PATH", os.environ["PATH"], "--setenv", "HOME", str(folder)]
    with tempfile.TemporaryFile() as file:
        file.write(seccomp.bpf_program())
        file.seek(0)
        if filtered:
            command += ["--seccomp", str(file.fileno())]
        command += ["--", sys.executable, "-I", "-c", script, *args]
        return subprocess.run(
            command, pass_fds=[file.fileno()], capture_output=True, text=True, timeout=60, env={}, cwd="/"
        )


@pytest.fixture
def sandbox() -> Iterator[Callable[..., Any]]:
    if BWRAP is None or platform.machine() not in NUMBERS:
        missing("bubblewrap is not installed")
    with tempfile.TemporaryDirectory(prefix="s-") as name:  # pytest's own is too long for a socket's path
        folder = Path(name)
        if in_sandbox("", filtered=False, folder=folder).returncode != 0:
            missing("bubblewrap cannot make a sandbox here")

        def run(script: str, *args: str, filtered: bool = True) -> Any:
            result = in_sandbox(script, *args, filtered=filtered, folder=folder)
            assert result.returncode == 0, result.stderr
            return json.loads(result.stdout)

        yield run


def missing(what: str) -> None:
    """A skip, or a failure where the local runtime is required."""
    if "local" in os.environ.get("EXECUTOR_REQUIRE_RUNTIMES", "").split(","):
        pytest.fail(what)
    pytest.skip(what)


def test_a_real_sandbox_obeys(sandbox: Callable[..., Any]) -> None:
    numbers = NUMBERS[platform.machine()]
    calls: dict[str, tuple[tuple[Any, ...], str]] = {
        "socket of another kernel message family": (("socket", 16, 3, 15), "EPERM"),
        "keyctl": (("keyctl", 0, -3, 0), "EPERM"),
        "ptrace": (("ptrace", 0, 0, 0, 0), "EPERM"),
        "user namespace": (("unshare", 0x10000000), "EPERM"),
        "user namespace by clone": (("clone", 0x10000011, 0, 0, 0, 0), "EPERM"),
        "no address randomisation": (("personality", 0x40000), "EPERM"),
        "typing into a terminal": (("ioctl", "null", 0x5412, "memory"), "EPERM"),
        "typing, with a bit above": (("ioctl", "null", HIGH | 0x5412, "memory"), "EPERM"),
        "another's limits": (("prlimit64", os.getpid(), 7, 0, "memory"), "EPERM"),
        "clone3": (("clone3", 0, 0), "ENOSYS"),
    }
    # These need something in the kernel, so the control cannot count on them.
    depends: dict[str, tuple[tuple[Any, ...], str]] = {
        "vsock": (("socket", 40, 1, 0), "EPERM"),
        "io_uring": (("io_uring_setup", 4, "memory"), "ENOSYS"),
        "memfd_secret": (("memfd_secret", 0), "EPERM"),
    }
    probes: dict[str, list[Any]] = {
        name: ["call", numbers[args[0]], *args[1:]] for name, (args, _) in (calls | depends).items()
    }
    expected = {name: answer for name, (_, answer) in (calls | depends).items()}
    if platform.machine() == "x86_64":
        probes |= {"x32": ["call", X32 | 39], "i386": ["i386", 20]}
        expected |= {"x32": "signal 31", "i386": "signal 31"}

    assert sandbox(PROBES, json.dumps(probes)) == expected
    control = sandbox(PROBES, json.dumps(probes), filtered=False)
    # Without the filter the same probes get elsewhere, so it is the filter that answered.
    assert [name for name in calls if control[name] == expected[name]] == []


def test_ordinary_work_goes_on(sandbox: Callable[..., Any]) -> None:
    assert sandbox(ORDINARY) == {
        "sqlite": 1,
        "socket": "hello",
        "interfaces": ["lo"],
        "subprocess": "100\n",
        "asyncio": "async",
        "pool": [1, 2],
        "spawn": [3],
    }


def test_node_goes_on(sandbox: Callable[..., Any]) -> None:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    program = (
        "const {Worker} = require('worker_threads');"
        "const shell = require('child_process').execSync('echo hi').toString().trim();"
        "new Worker('require(\"worker_threads\").parentPort.postMessage(42)', {eval: true})"
        ".on('message', m => console.log(JSON.stringify([m, shell])));"
    )
    run_node = "import subprocess, sys; sys.exit(subprocess.run(['node', '-e', sys.argv[1]]).returncode)"
    assert sandbox(run_node, program) == [42, "hi"]

"""Which system calls a sandbox may make: one policy as data, and the two forms in which runtimes load it.

`docker_profile()` is the Docker Engine's JSON, `bpf_program()` the classic BPF that bubblewrap loads from a
descriptor. Both are made from the tables below and nothing else, so the runtimes cannot drift apart.

The rules of the policy
1. It is an allow-list: today's default list of the Docker Engine for a container without capabilities, minus
   what lets a script look into other processes, widen the kernel's attack surface or reach past its sandbox.
   An engine's own default depends on its age; this one does not.
2. What is refused answers EPERM. What a C library or a program probes for, and does without, answers ENOSYS,
   so that the older way is taken; so does every call newer than the policy (runc does the same by itself).
   What a file system may be without answers ENOTSUP, which programs that copy files take for an answer.
   A refusal never kills: a script with a surprising call fails at that call and says so.
3. Except a foreign entry to the kernel (32-bit or x32 calls). There the same number means another call, so
   nothing could be judged, and nothing honest in the sandbox uses it: the process is killed.
4. An argument is judged by its low 32 bits. Each argument judged here is an `int`, an `unsigned int`, or
   flags of which the kernel reads the low half. Comparing all 64 bits would be wrong twice: a banned ioctl
   would pass with a bit set above, and an honest caller's leftovers there would be refused. Pointers are
   never judged: what they point at can change after the check.
5. Every call in `syscalls.NUMBERS` is in exactly one table.
"""

from __future__ import annotations

import errno
import json
import platform
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from executor.errors import PlatformError
from executor.runtimes.syscalls import NUMBERS

__all__ = [
    "ALLOWED",
    "ARGUMENT_RULES",
    "NOT_IMPLEMENTED",
    "NOT_SUPPORTED",
    "REFUSED",
    "bpf_program",
    "docker_profile",
]


@dataclass(frozen=True, slots=True)
class Arg:
    """True when the low 32 bits of argument `index`, and-ed with `mask`, are `value`."""

    index: int
    value: int
    mask: int = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class OnlyIf:
    """Allowed when every condition of at least one of the `ways` holds."""

    ways: tuple[tuple[Arg, ...], ...]


@dataclass(frozen=True, slots=True)
class Unless:
    """Allowed unless the low 32 bits of argument `index` are one of `values`."""

    index: int
    values: frozenset[int]


Rule = OnlyIf | Unless

# --- The policy ---------------------------------------------------------------------------------------------

ALLOWED: Final[Mapping[str, str]] = {
    "files by name": """
        access chdir chmod chown creat execve execveat faccessat faccessat2 fchmodat fchmodat2
        fchownat futimesat getcwd lchown link linkat lstat mkdir mkdirat mknod mknodat newfstatat
        open openat openat2 readlink readlinkat rename renameat renameat2 rmdir stat statfs statx
        symlink symlinkat truncate umask unlink unlinkat utime utimensat utimes""",
    "extended attributes": """
        fgetxattr flistxattr fremovexattr getxattr getxattrat lgetxattr listxattr listxattrat
        llistxattr lremovexattr removexattr removexattrat""",
    "open files": """
        cachestat close close_range copy_file_range dup dup2 dup3 fadvise64 fallocate fchdir fchmod
        fchown fdatasync flock fstat fstatfs fsync ftruncate getdents getdents64 lseek pipe
        pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readv sendfile splice
        sync sync_file_range syncfs tee vmsplice write writev""",
    "waiting for files": """
        epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait
        epoll_wait_old eventfd eventfd2 fanotify_mark inotify_add_watch inotify_init inotify_init1
        inotify_rm_watch poll ppoll pselect6 select signalfd signalfd4""",
    "mounts, read only": "listmount statmount",
    "memory": """
        brk madvise map_shadow_stack membarrier mincore mlock mlock2 mlockall mprotect mremap mseal
        msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect remap_file_pages""",
    "sockets already made": """
        accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg
        recvmsg sendmmsg sendmsg sendto setsockopt shutdown""",
    "messages, semaphores and shared memory": """
        mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv
        msgsnd semctl semget semop semtimedop shmat shmctl shmdt""",
    "processes": """
        exit exit_group fork getpgid getpgrp getpid getppid getrusage getsid kill pidfd_open
        pidfd_send_signal process_mrelease setpgid setsid tgkill times tkill vfork wait4 waitid""",
    "threads": """
        arch_prctl futex futex_requeue futex_wait futex_waitv futex_wake get_robust_list
        get_thread_area gettid rseq set_robust_list set_thread_area set_tid_address""",
    # Raising an identity needs capabilities and, with no-new-privileges, cannot be had; dropping is harmless.
    "identity": """
        capget capset getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid setfsuid
        setgid setgroups setregid setresgid setresuid setreuid setuid""",
    # A script may tighten its own rights further.
    "own sandboxing": "landlock_add_rule landlock_create_ruleset landlock_restrict_self",
    "signals": """
        pause restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
        rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sigaltstack uretprobe""",
    # The adjtimex pair reads the clock's state; setting it needs a capability.
    "time": """
        adjtimex alarm clock_adjtime clock_getres clock_gettime clock_nanosleep getitimer
        gettimeofday nanosleep setitimer time timer_create timer_delete timer_getoverrun
        timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime""",
    "scheduling and limits": """
        getcpu getpriority getrlimit ioprio_get sched_get_priority_max sched_get_priority_min
        sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
        sched_setaffinity sched_yield setrlimit""",
    "about the system": "getrandom sysinfo uname",
}
"""Calls that are allowed with any arguments, by topic."""

_SELF: Final = (Arg(0, 0),)  # pid 0 is the caller; a number could be the guest, which shares the scripts' uid

_FAMILIES: Final = OnlyIf(
    (
        (Arg(0, 1),),  # AF_UNIX
        (Arg(0, 2),),  # AF_INET
        (Arg(0, 10),),  # AF_INET6
        (Arg(0, 16), Arg(2, 0)),  # AF_NETLINK, NETLINK_ROUTE: how libraries list interfaces
    )
)

ARGUMENT_RULES: Final[Mapping[str, Rule]] = {
    # Every other family is either a way out (a VM's vsock leads to its hypervisor, whatever the network
    # namespace) or kernel code that scripts have no use for (AF_ALG, AF_XDP, the other netlink protocols).
    "socket": _FAMILIES,
    "socketpair": _FAMILIES,
    "prlimit64": OnlyIf((_SELF,)),
    "sched_setattr": OnlyIf((_SELF,)),
    "sched_setparam": OnlyIf((_SELF,)),
    "sched_setscheduler": OnlyIf((_SELF,)),
    "setpriority": OnlyIf(((Arg(0, 0), Arg(1, 0)),)),  # PRIO_PROCESS, self
    "ioprio_set": OnlyIf(((Arg(0, 1), Arg(1, 0)),)),  # IOPRIO_WHO_PROCESS, self
    # No CLONE_NEW* flag. (CLONE_NEWTIME's bit is part of the exit signal here: clone cannot ask for it.)
    "clone": OnlyIf(((Arg(0, 0, mask=0x7E02_0000),),)),
    # The usual one, and the question which one it is. No ADDR_NO_RANDOMIZE, no READ_IMPLIES_EXEC.
    "personality": OnlyIf(((Arg(0, 0),), (Arg(0, 0xFFFF_FFFF),))),
    # No huge pages: MAP_HUGETLB, MFD_HUGETLB and SHM_HUGETLB take what the operator has set aside for others,
    # and no memory limit counts it.
    "mmap": OnlyIf(((Arg(3, 0, mask=0x4_0000),),)),
    "memfd_create": OnlyIf(((Arg(1, 0, mask=0x4),),)),
    "shmget": OnlyIf(((Arg(2, 0, mask=0o4000),),)),
    # PR_SET_SECCOMP as `seccomp`, see REFUSED. PR_SCHED_CORE lets the other half of a processor stand idle.
    "prctl": Unless(0, frozenset({22, 62})),
    # TIOCSTI and TIOCLINUX type into a terminal that others read; TIOCSETD loads line disciplines.
    "ioctl": Unless(1, frozenset({0x5412, 0x541C, 0x5423})),
    # F_SETLEASE and F_SETDELEG: whoever opens or executes the file then, process 1 too, stands still in the
    # kernel until the lease is given back, for up to 45 s.
    "fcntl": Unless(1, frozenset({1024, 1040})),
}
"""Calls that are allowed for some arguments; otherwise EPERM."""

NOT_IMPLEMENTED: Final[Mapping[str, str]] = {
    # Its flags are behind a pointer, so namespaces could not be refused; C libraries fall back to clone.
    "flags out of sight": "clone3",
    # It does on its own what the filter refuses (it can make a vsock socket), and has a long list of holes.
    "runs calls past the filter": "io_uring_enter io_uring_register io_uring_setup",
    # fs.aio-max-nr counts for everybody: one sandbox could leave nothing to the databases of this machine.
    "one pool for the whole machine": """
        io_cancel io_destroy io_getevents io_pgetevents io_setup io_submit""",
}
"""Calls that answer ENOSYS, by reason."""

NOT_SUPPORTED: Final[Mapping[str, str]] = {
    # An access control list of 64 KiB for each file, which no memory limit counts: gigabytes of the host's.
    "memory that nobody counts": "fsetxattr lsetxattr setxattr setxattrat",
}
"""Calls that answer ENOTSUP, by reason: a tmpfs had no attributes of users before Linux 6.6 either."""

REFUSED: Final[Mapping[str, str]] = {
    "looks into another process": """
        kcmp pidfd_getfd process_madvise process_vm_readv process_vm_writev ptrace""",
    # Filters are compiled into one pool (net.core.bpf_jit_limit); without room bubblewrap cannot load ours.
    "one pool for the whole machine": "seccomp",
    "reaches files outside the tree": "name_to_handle_at open_by_handle_at",
    "memory or keys out of the operator's sight": "add_key keyctl memfd_secret request_key",
    "moves memory between nodes": """
        get_mempolicy mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node""",
    "makes or changes namespaces and mounts": """
        chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree pivot_root
        setns umount2 unshare""",
    "instruments the kernel": """
        bpf fanotify_init lookup_dcookie lsm_get_self_attr lsm_list_modules lsm_set_self_attr
        perf_event_open syslog userfaultfd""",
    "administers the machine": """
        acct clock_settime delete_module finit_module init_module ioperm iopl kexec_file_load
        kexec_load quotactl quotactl_fd reboot setdomainname sethostname settimeofday swapoff swapon
        vhangup""",
    "old, and a source of holes": """
        _sysctl afs_syscall create_module get_kernel_syms getpmsg modify_ldt nfsservctl putpmsg
        query_module security sysfs tuxcall uselib ustat vserver""",
}
"""Calls that answer EPERM, by reason. Nothing is made from this table: it says that each was thought of."""

# --- The Docker Engine's form -------------------------------------------------------------------------------

_DOCKER_ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


def docker_profile() -> str:
    """The policy as the JSON that `SecurityOpt: ["seccomp=…"]` takes.

    Engines from 20.10 on read it: fields they do not know are skipped by them, and so are names that their
    libseccomp is too old for. No architecture has a sub-architecture, so the foreign entries are closed.
    """
    rules: list[dict[str, Any]] = [{"names": sorted(_names(ALLOWED)), "action": "SCMP_ACT_ALLOW"}]
    for name, rule in sorted(ARGUMENT_RULES.items()):
        # Entries for the same name are alternatives. Within an entry no argument comes twice: runc would
        # take the conditions on it as alternatives too.
        for way in _ways(rule):
            args = [
                {"index": arg.index, "op": "SCMP_CMP_MASKED_EQ", "value": arg.mask, "valueTwo": arg.value}
                for arg in way
            ]
            rules.append({"names": [name], "action": "SCMP_ACT_ALLOW", "args": args})
    for table, number in ((NOT_IMPLEMENTED, errno.ENOSYS), (NOT_SUPPORTED, errno.ENOTSUP)):
        rules.append({"names": sorted(_names(table)), "action": "SCMP_ACT_ERRNO", "errnoRet": number})
    profile = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "archMap": [
            {"architecture": architecture, "subArchitectures": []}
            for architecture in _DOCKER_ARCHITECTURES.values()
        ],
        "syscalls": rules,
    }
    return json.dumps(profile, separators=(",", ":"))


def _ways(rule: Rule) -> tuple[tuple[Arg, ...], ...]:
    """A rule as alternatives. libseccomp has "unequal" for whole 64-bit arguments only, which rule 4 forbids,
    so everything but some values is spelt as the blocks of numbers around them."""
    if isinstance(rule, OnlyIf):
        return rule.ways
    return tuple((arg,) for arg in _around(rule.index, rule.values, 0, 0, 32))


def _around(index: int, banned: frozenset[int], value: int, mask: int, bits: int) -> Iterator[Arg]:
    """The largest blocks without a banned number, in the block of `value` with `bits` free low bits."""
    if not any(number & mask == value for number in banned):
        yield Arg(index, value, mask)
    elif bits:
        bit = 1 << (bits - 1)
        yield from _around(index, banned, value, mask | bit, bits - 1)
        yield from _around(index, banned, value | bit, mask | bit, bits - 1)


# --- The BPF form -------------------------------------------------------------------------------------------

# What the kernel does with the program's answer (linux/seccomp.h).
_KILL_PROCESS: Final = 0x8000_0000
_ERRNO: Final = 0x0005_0000
_ALLOW: Final = 0x7FFF_0000
_EPERM: Final = _ERRNO | errno.EPERM
_ENOSYS: Final = _ERRNO | errno.ENOSYS
_ENOTSUP: Final = _ERRNO | errno.ENOTSUP

# The instructions it is made of (linux/bpf_common.h). Jumps are relative and go forward.
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS: a 32-bit word of struct seccomp_data
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP: Final = 0x05  # BPF_JMP | BPF_JA: by k, which is 32 bits wide
_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K: by jt or jf, which are 8 bits wide
_IF_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_IF_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K

# Offsets into struct seccomp_data: { int nr; u32 arch; u64 instruction_pointer; u64 args[6]; }. Both machines
# are little-endian, so an argument's low half comes first.
_NUMBER: Final = 0
_ARCHITECTURE: Final = 4
_ARGUMENTS: Final = 16

_AUDIT_ARCHITECTURES: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}  # linux/audit.h
_X32_BIT: Final = 0x4000_0000  # x32 shares x86-64's architecture and marks its numbers with this bit
_ALIASES: Final = {"amd64": "x86_64", "arm64": "aarch64"}

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, k
_Verdict = int | OnlyIf | Unless


def bpf_program(machine: str | None = None) -> bytes:
    """The policy as an array of `struct sock_filter` for `machine` (default: this one), for `--seccomp FD`.

    The number is found by binary search over ranges with the same verdict, about 12 instructions a call where
    a list would need hundreds; kernels from 5.11 on remember what is always allowed and run none.
    Raises PlatformError for a machine whose numbers are not known.
    """
    asked = platform.machine() if machine is None else machine
    known = _ALIASES.get(asked.lower(), asked.lower())
    if known not in NUMBERS:
        raise PlatformError(
            f"no system call filter for the machine type {asked!r}",
            hint=f"run on one of {', '.join(sorted(NUMBERS))}",
        )
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, _AUDIT_ARCHITECTURES[known]),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if known == "x86_64":
        program += [(_IF_ANY_BIT, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    program += _search(_ranges(NUMBERS[known]))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _ranges(numbers: Mapping[str, int]) -> list[tuple[int, _Verdict]]:
    """(first number, verdict) of each range of numbers with the same verdict, in order, from 0 on."""
    verdicts: dict[int, _Verdict] = {}
    verdicts |= {numbers[name]: _ALLOW for name in _names(ALLOWED) if name in numbers}
    verdicts |= {numbers[name]: rule for name, rule in ARGUMENT_RULES.items() if name in numbers}
    verdicts |= {numbers[name]: _ENOSYS for name in _names(NOT_IMPLEMENTED) if name in numbers}
    verdicts |= {numbers[name]: _ENOTSUP for name in _names(NOT_SUPPORTED) if name in numbers}
    end = max(verdicts) + 1
    ranges: list[tuple[int, _Verdict]] = []
    for number in range(end):
        verdict = verdicts.get(number, _EPERM)
        if not ranges or ranges[-1][1] != verdict:
            ranges.append((number, verdict))
    ranges.append((end, _ENOSYS))
    return ranges


def _search(ranges: Sequence[tuple[int, _Verdict]]) -> list[_Instruction]:
    """The loaded number's verdict, by halving the ranges. Each part ends in returns, so parts just add up."""
    if len(ranges) == 1:
        return _answer(ranges[0][1])
    middle = len(ranges) // 2
    below, rest = _search(ranges[:middle]), _search(ranges[middle:])
    first = ranges[middle][0]
    if len(below) <= 0xFF:
        return [(_IF_AT_LEAST, len(below), 0, first), *below, *rest]
    return [(_IF_AT_LEAST, 0, 1, first), (_JUMP, 0, 0, len(below)), *below, *rest]


def _answer(verdict: _Verdict) -> list[_Instruction]:
    if isinstance(verdict, int):
        return [(_RETURN, 0, 0, verdict)]
    if isinstance(verdict, Unless):
        values = sorted(verdict.values)
        return [
            (_LOAD, 0, 0, _ARGUMENTS + 8 * verdict.index),
            *((_IF_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _EPERM),
        ]
    return [instruction for way in verdict.ways for instruction in _way(way)] + _answer(_EPERM)


def _way(way: tuple[Arg, ...]) -> list[_Instruction]:
    """Return ALLOW when all hold, else go on behind this block."""
    block: list[_Instruction] = [(_RETURN, 0, 0, _ALLOW)]
    for arg in reversed(way):
        mask = [] if arg.mask == 0xFFFF_FFFF else [(_AND, 0, 0, arg.mask)]
        load = (_LOAD, 0, 0, _ARGUMENTS + 8 * arg.index)
        block = [load, *mask, (_IF_EQUAL, 0, len(block), arg.value), *block]
    return block


def _names(table: Mapping[str, str]) -> Iterable[str]:
    return (name for names in table.values() for name in names.split())

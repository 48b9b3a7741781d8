"""System call numbers, as data: name to number for each machine the sandbox knows.

Source: the Linux UAPI headers (`asm/unistd_64.h` for x86-64, `asm-generic/unistd.h` for aarch64), up to
Linux 6.13. Numbers never change once released, so this file only ever grows at its end. It holds facts and
no judgement: what a sandbox may call is said in `seccomp.py`, which must take a decision on every name here
(a test checks that it does).

A row is the number of its first call and the names from there on, one number each; a gap starts a new row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

Rows = tuple[tuple[int, str], ...]

# From 424 on every architecture has the same numbers.
_SHARED: Rows = (
    (424, "pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount"),
    (430, "fsopen fsconfig fsmount fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2"),
    (440, "process_madvise epoll_pwait2 mount_setattr quotactl_fd landlock_create_ruleset"),
    (445, "landlock_add_rule landlock_restrict_self memfd_secret process_mrelease futex_waitv"),
    (450, "set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait"),
    (456, "futex_requeue statmount listmount lsm_get_self_attr"),
    (460, "lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat removexattrat"),
)

_X86_64: Rows = (
    (0, "read write open close stat fstat lstat poll lseek mmap"),
    (10, "mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn ioctl pread64 pwrite64 readv"),
    (20, "writev access pipe select sched_yield mremap msync mincore madvise shmget"),
    (30, "shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid"),
    (40, "sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind"),
    (50, "listen getsockname getpeername socketpair setsockopt getsockopt clone fork vfork execve"),
    (60, "exit wait4 kill uname semget semop semctl shmdt msgget msgsnd"),
    (70, "msgrcv msgctl fcntl flock fsync fdatasync truncate ftruncate getdents getcwd"),
    (80, "chdir fchdir rename mkdir rmdir creat link unlink symlink readlink"),
    (90, "chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo"),
    (100, "times ptrace getuid syslog getgid setuid setgid geteuid getegid setpgid"),
    (110, "getppid getpgrp setsid setreuid setregid getgroups setgroups setresuid getresuid setresgid"),
    (120, "getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending rt_sigtimedwait"),
    (129, "rt_sigqueueinfo"),
    (130, "rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs sysfs"),
    (140, "getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler"),
    (146, "sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock"),
    (150, "munlock mlockall munlockall vhangup modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex"),
    (160, "setrlimit chroot sync acct settimeofday mount umount2 swapon swapoff reboot"),
    (170, "sethostname setdomainname iopl ioperm create_module init_module delete_module"),
    (177, "get_kernel_syms query_module quotactl"),
    (180, "nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead setxattr lsetxattr"),
    (190, "fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr"),
    (198, "lremovexattr fremovexattr"),
    (200, "tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup io_destroy"),
    (208, "io_getevents io_submit"),
    (210, "io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old epoll_wait_old"),
    (216, "remap_file_pages getdents64 set_tid_address restart_syscall"),
    (220, "semtimedop fadvise64 timer_create timer_settime timer_gettime timer_getoverrun timer_delete"),
    (227, "clock_settime clock_gettime clock_getres"),
    (230, "clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy"),
    (239, "get_mempolicy"),
    (240, "mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid"),
    (248, "add_key request_key"),
    (250, "keyctl ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages"),
    (257, "openat mkdirat mknodat"),
    (260, "fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat"),
    (269, "faccessat"),
    (270, "pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice"),
    (279, "move_pages"),
    (280, "utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime"),
    (287, "timerfd_gettime accept4 signalfd4"),
    (290, "eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo"),
    (298, "perf_event_open recvmmsg"),
    (300, "fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime"),
    (306, "syncfs sendmmsg setns getcpu"),
    (310, "process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2"),
    (317, "seccomp getrandom memfd_create"),
    (320, "kexec_file_load bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2"),
    (329, "pkey_mprotect"),
    (330, "pkey_alloc pkey_free statx io_pgetevents rseq uretprobe"),
)

_AARCH64: Rows = (
    (0, "io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr"),
    (9, "lgetxattr"),
    (10, "fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd"),
    (18, "lookup_dcookie eventfd2"),
    (20, "epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch"),
    (28, "inotify_rm_watch ioctl"),
    (30, "ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2"),
    (40, "mount pivot_root nfsservctl statfs fstatfs truncate ftruncate fallocate faccessat chdir"),
    (50, "fchdir chroot fchmod fchmodat fchownat fchown openat close vhangup pipe2"),
    (60, "quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv"),
    (70, "pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat"),
    (80, "fstat sync fsync fdatasync sync_file_range timerfd_create timerfd_settime timerfd_gettime"),
    (88, "utimensat acct"),
    (90, "capget capset personality exit exit_group waitid set_tid_address unshare futex"),
    (99, "set_robust_list"),
    (100, "get_robust_list nanosleep getitimer setitimer kexec_load init_module delete_module"),
    (107, "timer_create timer_gettime timer_getoverrun"),
    (110, "timer_settime timer_delete clock_settime clock_gettime clock_getres clock_nanosleep syslog"),
    (117, "ptrace sched_setparam sched_setscheduler"),
    (120, "sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield"),
    (125, "sched_get_priority_max sched_get_priority_min sched_rr_get_interval restart_syscall kill"),
    (130, "tkill tgkill sigaltstack rt_sigsuspend rt_sigaction rt_sigprocmask rt_sigpending"),
    (137, "rt_sigtimedwait rt_sigqueueinfo rt_sigreturn"),
    (140, "setpriority getpriority reboot setregid setgid setreuid setuid setresuid getresuid"),
    (149, "setresgid"),
    (150, "getresgid setfsuid setfsgid times setpgid getpgid getsid setsid getgroups setgroups"),
    (160, "uname sethostname setdomainname getrlimit setrlimit getrusage umask prctl getcpu"),
    (169, "gettimeofday"),
    (170, "settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo"),
    (180, "mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv"),
    (189, "msgsnd"),
    (190, "semget semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair"),
    (200, "bind listen accept connect getsockname getpeername sendto recvfrom setsockopt getsockopt"),
    (210, "shutdown sendmsg recvmsg readahead brk munmap mremap add_key request_key keyctl"),
    (220, "clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock"),
    (230, "mlockall munlockall mincore madvise remap_file_pages mbind get_mempolicy set_mempolicy"),
    (238, "migrate_pages move_pages"),
    (240, "rt_tgsigqueueinfo perf_event_open accept4 recvmmsg"),
    (260, "wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at"),
    (266, "clock_adjtime syncfs setns sendmmsg"),
    (270, "process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2"),
    (277, "seccomp getrandom memfd_create"),
    (280, "bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2 pkey_mprotect"),
    (289, "pkey_alloc"),
    (290, "pkey_free statx io_pgetevents rseq kexec_file_load"),
)


def _table(*parts: Rows) -> Mapping[str, int]:
    def pairs() -> Iterable[tuple[str, int]]:
        for part in parts:
            for first, names in part:
                yield from ((name, first + i) for i, name in enumerate(names.split()))

    return MappingProxyType(dict(pairs()))


NUMBERS: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType(
    {"x86_64": _table(_X86_64, _SHARED), "aarch64": _table(_AARCH64, _SHARED)}
)
"""Machine, as `platform.machine()` names it on Linux, to call name to call number."""

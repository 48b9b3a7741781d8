"""Files of the kernel and of the system: which open for writing, and which tell about the host. Nothing is written."""

import os

WRITE = """
/proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/kernel/hostname /proc/sys/kernel/domainname
/proc/sys/kernel/sem /proc/sys/kernel/shmall /proc/sys/kernel/shmmax /proc/sys/kernel/msgmni
/proc/sys/kernel/ns_last_pid /proc/sys/kernel/pid_max /proc/sys/kernel/randomize_va_space
/proc/sys/kernel/unprivileged_userns_clone /proc/sys/vm/overcommit_memory /proc/sys/vm/drop_caches
/proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/ping_group_range /proc/sys/net/ipv6/conf/lo/disable_ipv6
/proc/sys/user/max_user_namespaces /proc/sys/fs/mqueue/msg_max /proc/sys/fs/binfmt_misc/register
/proc/sysrq-trigger /proc/kcore /proc/kmsg /proc/mem /proc/acpi/wakeup /proc/irq/0/smp_affinity /proc/mtrr
/sys/kernel/uevent_helper /sys/kernel/mm/transparent_hugepage/enabled /sys/power/state /sys/kernel/security
/sys/kernel/debug /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/memory/memory.limit_in_bytes
/sys/fs/cgroup/memory/release_agent /sys/fs/cgroup/release_agent /sys/fs/cgroup/pids/cgroup.procs
/sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max
/dev/mem /dev/port /dev/kmsg /dev/kvm /dev/fuse /dev/vda /dev/sda /dev/nvme0n1 /dev/vsock /dev/vhost-vsock
/dev/net/tun /dev/uinput /dev/loop-control /dev/userfaultfd /dev/mqueue/x /dev/console /dev/tty0 /dev/snapshot
/dev/hpet /dev/cpu_dma_latency /dev/rfkill /dev/uhid /dev/vhost-net /dev/dri/card0
""".split()
READ = """
/proc/cmdline /proc/config.gz /proc/iomem /proc/ioports /proc/interrupts /proc/kallsyms /proc/kcore /proc/kmsg
/proc/diskstats /proc/partitions /proc/modules /proc/locks /proc/keys /proc/key-users /proc/timer_list
/proc/pagetypeinfo /proc/slabinfo /proc/vmallocinfo /proc/swaps /proc/sched_debug /proc/latency_stats
/sys/firmware /sys/block /sys/module /sys/kernel /sys/class/dmi/id/product_uuid
/dev/kmsg /etc/shadow /etc/machine-id /etc/ssh /var/lib/docker /root/.ssh /root/.bash_history /home
""".split()


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def writes(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        return False, error.strerror
    return True, "opened"


def reads(path):
    """The beginning of a file, the names in a folder; nothing when there is nothing."""
    try:
        if os.path.isdir(path):
            return repr(sorted(os.listdir(path))[:8]) if os.listdir(path) else ""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.read(fd, 80).decode("utf-8", "backslashreplace")
        finally:
            os.close(fd)
    except OSError:
        return ""


for path in WRITE:
    opened, said = writes(path)
    check("write:" + path, not opened, said)
for path in READ:
    said = reads(path)
    if path == "/proc/kallsyms":  # without privileges its addresses are zero; the names still tell the kernel
        said = said and "symbols"
    check("read:" + path, not said, ascii(said))

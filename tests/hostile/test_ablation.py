"""Every protection is needed: take one away and something notices, the attestation or a check of the battery.

A row says what is taken away, how, and who notices: a sentence of the attestation (the sandbox is destroyed
unused), or a payload and those of its checks that become BAD. What only the host can notice, or what stands
behind another protection, is in UNNOTICED with the reason; no setting is in neither. By default those of
DEFAULT are tried; all of them with EXECUTOR_SOAK=1.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from battery import CHECKS, ORDER, Host, host, run

from executor import Executor, ExecutorError, SandboxStartError
from executor.channel import connection
from executor.guest import bundle
from executor.runtimes import container, local
from executor.runtimes.base import IPC, SandboxSpec

SOAK = bool(os.environ.get("EXECUTOR_SOAK"))
DIES = "dies"
Edit = Callable[[Any], None]


@dataclass(frozen=True)
class Row:
    """One thing taken away."""

    attested: str = ""
    """What the attestation says."""
    payload: str = ""
    bad: str = ""
    """Checks of the payload that become BAD; DIES when it does not come to its end."""
    body: Edit | None = None
    """Container: edits the create body."""
    arguments: Edit | None = None
    """Local: edits bubblewrap's arguments in place."""
    prepare: str = ""
    """Local: this option is taken from the command in front of bubblewrap."""
    table: tuple[str, str] | None = None
    """Local: replaced in the table of mounts."""
    filter: bytes | None = None
    """Local: another system call filter; b'' for none."""
    rlimit: str = ""
    """Taken from what the guest sets and from the create body."""
    guest: tuple[str, str] | None = None
    """Replaced in the guest's source."""
    blind: bool = False
    """The attestation is off too: what stands behind it is tried."""
    cpus: float = 1


# -- the ways to take away --


def setting(name: str, value: Any) -> Edit:
    def edit(body: dict[str, Any]) -> None:
        target = body if name in body else body["HostConfig"]
        assert target[name] != value
        target[name] = value

    return edit


def without_sysctls(*names: str, also: Edit | None = None) -> Edit:
    def edit(body: dict[str, Any]) -> None:
        for name in names or tuple(body["HostConfig"]["Sysctls"]):
            del body["HostConfig"]["Sysctls"][name]
        if also is not None:
            also(body)

    return edit


def security(*options: str) -> Edit:
    def edit(body: dict[str, Any]) -> None:
        kept = body["HostConfig"]["SecurityOpt"]
        body["HostConfig"]["SecurityOpt"] = [o for o in kept if o.startswith(options)] + (
            ["seccomp=unconfined"] if "unconfined" in options else []
        )

    return edit


def tmpfs(place: str, old: str, new: str) -> Edit:
    """Replace an option of one tmpfs; with everything empty the mount goes."""

    def edit(body: dict[str, Any]) -> None:
        found = body["HostConfig"]["Tmpfs"]
        options = [o for o in found.pop(place).split(",") if not (old and o.startswith(old))]
        if old:
            found[place] = ",".join([*options, *filter(None, [new])])

    return edit


def host_uts(body: dict[str, Any]) -> None:
    body["HostConfig"]["UTSMode"] = "host"
    body["Hostname"] = ""


def bind_writable(body: dict[str, Any]) -> None:
    body["HostConfig"]["Binds"] = ["/tmp:/opt"]


def device(body: dict[str, Any]) -> None:
    body["HostConfig"]["Devices"] = [
        {"PathOnHost": "/dev/null", "PathInContainer": "/dev/mem", "CgroupPermissions": "rwm"}
    ]


def no_memory(body: dict[str, Any]) -> None:
    body["HostConfig"].update(Memory=0, MemorySwap=0)
    body["HostConfig"].pop("MemorySwappiness", None)


def without(*words: str) -> Edit:
    """Take a run of words out of bubblewrap's arguments."""

    def edit(args: list[str]) -> None:
        at = _find(args, words)
        del args[at : at + len(words)]

    return edit


def instead(old: tuple[str, ...], new: tuple[str, ...]) -> Edit:
    def edit(args: list[str]) -> None:
        at = _find(args, old)
        args[at : at + len(old)] = new

    return edit


def _find(args: list[str], words: tuple[str, ...]) -> int:
    return next(at for at in range(len(args)) if tuple(args[at : at + len(words)]) == words)


def unmasked(args: list[str]) -> None:
    for path in local.masked():
        at = args.index(path) - 2
        assert args[at] == "--ro-bind-data"
        del args[at : at + 3]


def without_bind(place: str) -> Edit:
    def edit(args: list[str]) -> None:
        at = max(i for i, word in enumerate(args) if word == place)
        assert args[at - 2] == "--bind"
        args[at - 2 : at + 1] = []

    return edit


def writable_usr(args: list[str]) -> None:
    at = args.index("/usr") - 2
    assert args[at] in ("--ro-bind", "--ro-bind-try")
    args[at] = "--bind"


ALLOW_ALL = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
TELLING = "read:/proc/cmdline read:/proc/kallsyms read:/proc/interrupts read:/proc/swaps"
FILTER = """
    prlimit-other setpriority-other sched-other ioprio-other ioctl-tiocsetd ptrace"""

IPC_SYSCTLS = tuple(f"kernel.{name}" for name in IPC)

CONTAINER = {
    "NetworkMode": Row(
        "net namespace is the host's", body=without_sysctls(also=setting("NetworkMode", "host"))
    ),
    "IpcMode": Row(
        "ipc namespace is the host's",
        body=without_sysctls(*IPC_SYSCTLS, also=setting("IpcMode", "host")),
    ),
    "PidMode": Row("not 1", body=setting("PidMode", "host")),
    "UTSMode": Row("uts namespace is the host's", body=host_uts),
    "CgroupnsMode": Row(payload="k05_traces.py", bad="cgroup-paths", body=setting("CgroupnsMode", "host")),
    "Privileged": Row("CapBnd", body=setting("Privileged", True)),
    "ReadonlyRootfs": Row("root file system is writable", body=setting("ReadonlyRootfs", False)),
    "Init": Row("not 1", body=setting("Init", True)),
    "CapDrop": Row("CapBnd", body=setting("CapDrop", [])),
    "CapAdd": Row("CapBnd", body=setting("CapAdd", ["SYS_ADMIN"])),
    "GroupAdd": Row("supplementary groups", body=setting("GroupAdd", ["0"])),
    "Binds": Row("/opt", body=bind_writable),
    "Devices": Row(payload="d03_census.py", bad="devices", body=device),
    "SecurityOpt: no-new-privileges": Row("no_new_privs", body=security("seccomp=")),
    "SecurityOpt: seccomp": Row("no seccomp filter", body=security("no-new", "unconfined")),
    "SecurityOpt: our profile": Row(
        payload="k01_syscalls.py", bad=FILTER, body=security("no-new-privileges")
    ),
    "SecurityOpt: our profile, families": Row(
        payload="n02_families.py",
        bad="netlink:GENERIC netlink:KOBJECT_UEVENT netlink:SOCK_DIAG",
        body=security("no-new-privileges"),
    ),
    "SecurityOpt: our profile, entries": Row(
        payload="k02_foreign.py", bad="i386-getpid", body=security("no-new-privileges")
    ),
    "SecurityOpt: our profile, process 1": Row(
        payload="t04_init.py",
        bad="init:prlimit init:scheduler init:priority",
        body=security("no-new-privileges"),
    ),
    "PidsLimit": Row(payload="r01_forks.py", bad="forks", body=setting("PidsLimit", 0)),
    "Memory": Row(payload="r03_memory.py", bad="anonymous-memory", body=no_memory),
    "NanoCpus": Row(payload="r09_cpu.py", bad="cpu", body=setting("NanoCpus", 0), cpus=0.05),
    "Tmpfs: /tmp": Row("['/tmp'] are not mounted", body=tmpfs("/tmp", "", "")),
    "Tmpfs: /workspace": Row(DIES, body=tmpfs("/workspace", "", "")),
    "Tmpfs: /dev/shm": Row(payload="d01_inodes.py", bad="inodes:/dev/shm", body=tmpfs("/dev/shm", "", "")),
    "Tmpfs: uid": Row(DIES, body=tmpfs("/workspace", "uid=", "")),
    "Tmpfs: size": Row(
        payload="r04_tmpfs.py", bad=f"fill:/workspace {DIES}", body=tmpfs("/workspace", "size=", "")
    ),
    "Tmpfs: nr_inodes": Row(
        payload="d01_inodes.py", bad="inodes:/workspace", body=tmpfs("/workspace", "nr_inodes=", "")
    ),
    "Tmpfs: nosuid": Row(
        payload="d03_census.py", bad="mount-options", body=tmpfs("/workspace", "nosuid", "suid")
    ),
    "Tmpfs: nodev": Row(payload="d03_census.py", bad="mount-options", body=tmpfs("/skills", "nodev", "dev")),
    "Tmpfs: noexec": Row(
        payload="d03_census.py", bad="shm-not-executable", body=tmpfs("/dev/shm", "noexec", "exec")
    ),
    "Sysctls: shmall": Row(payload="r05_shared.py", bad="system-v", body=without_sysctls("kernel.shmall")),
    "Sysctls: msgmni": Row(payload="r10_kernel.py", bad="messages", body=without_sysctls("kernel.msgmni")),
    "Sysctls: sem": Row(payload="r10_kernel.py", bad="semaphores", body=without_sysctls("kernel.sem")),
    "SecurityOpt: our profile, memory": Row(
        payload="r10_kernel.py",
        bad="lists huge-pages own-filter",
        body=security("no-new-privileges"),
    ),
    "Sysctls: ipv6": Row(
        payload="n01_inet.py",
        bad="loopback-6",
        body=without_sysctls("net.ipv6.conf.all.disable_ipv6", "net.ipv6.conf.lo.disable_ipv6"),
    ),
    "Sysctls: ping": Row(
        payload="n02_families.py", bad="protocol:ping", body=without_sysctls("net.ipv4.ping_group_range")
    ),
    "MaskedPaths": Row(payload="k04_procfs.py", bad=TELLING, body=setting("MaskedPaths", [])),
    "ReadonlyPaths": Row(
        payload="k04_procfs.py", bad="write:/proc/sys/kernel/ns_last_pid", body=setting("ReadonlyPaths", [])
    ),
    "PR_SET_DUMPABLE, frames forged": Row(
        payload="o05_forge.py",
        bad="write:/proc/1/fd/0 write:/proc/1/fd/1",
        guest=("if prctl(4, 0) != 0 or prctl(3, 0) != 0:", "if False:"),
        blind=True,
    ),
    "User": Row(DIES, body=setting("User", "0:0")),
}
LOCAL = {
    "--unshare-net": Row("net namespace is the host's", arguments=without("--unshare-net")),
    "--unshare-pid": Row(DIES, arguments=without("--unshare-pid")),
    "--unshare-user": Row(DIES, arguments=without("--unshare-user")),
    "--unshare-uts": Row(DIES, arguments=without("--unshare-uts")),
    "--unshare-cgroup-try": Row(
        payload="k05_traces.py", bad="cgroup-paths", arguments=without("--unshare-cgroup-try")
    ),
    "the ipc namespace": Row("ipc namespace is the host's", prepare="--ipc"),
    "--as-pid-1": Row("not 1", arguments=without("--as-pid-1")),
    "--cap-drop": Row("Cap", arguments=instead(("--cap-drop", "ALL"), ("--cap-add", "ALL"))),
    "--hostname": Row(payload="k03_identity.py", bad="host-name", arguments=without("--hostname", "sandbox")),
    "--disable-userns, behind the filter": Row(
        payload="k01_syscalls.py",
        bad="unshare-user clone-user",
        arguments=without("--disable-userns"),
        filter=ALLOW_ALL,
    ),
    "--ro-bind": Row(payload="d03_census.py", bad="disks-read-only", arguments=writable_usr),
    "--ro-bind /proc/sys": Row(
        payload="k04_procfs.py",
        bad="write:/proc/sys/kernel/ns_last_pid",
        arguments=without("--ro-bind-try", "/proc/sys", "/proc/sys"),
    ),
    "--dev": Row(
        payload="d03_census.py",
        bad=DIES,
        arguments=instead(("--dev", "/dev"), ("--dev-bind", "/dev", "/dev")),
    ),
    "--remount-ro /": Row("root file system is writable", arguments=without("--remount-ro", "/")),
    "--remount-ro /dev": Row("/dev (tmpfs) is writable", arguments=without("--remount-ro", "/dev")),
    "--bind /workspace": Row(DIES, arguments=without_bind("/workspace")),
    "--bind /skills": Row("not mounted writable", arguments=without_bind("/skills")),
    "the masks": Row(payload="k04_procfs.py", bad=TELLING, arguments=unmasked),
    "--seccomp": Row("no seccomp filter", filter=b""),
    "the filter": Row(payload="k01_syscalls.py", bad=FILTER, filter=ALLOW_ALL),
    "the filter, families": Row(
        payload="n02_families.py",
        bad="netlink:GENERIC netlink:KOBJECT_UEVENT netlink:SOCK_DIAG",
        filter=ALLOW_ALL,
    ),
    "the filter, entries": Row(payload="k02_foreign.py", bad="i386-getpid", filter=ALLOW_ALL),
    "the filter, memory": Row(
        payload="r10_kernel.py", bad="lists pool-aio huge-pages own-filter", filter=ALLOW_ALL
    ),
    "the filter, process 1": Row(
        payload="t04_init.py", bad="init:prlimit init:scheduler init:priority", filter=ALLOW_ALL
    ),
    "size": Row(
        payload="r04_tmpfs.py", bad=f"fill:/workspace {DIES}", table=(f"size={ORDER.disk}", "size=1g")
    ),
    "nr_inodes": Row(
        payload="d01_inodes.py", bad="inodes:/workspace", table=(f"nr_inodes={ORDER.inodes}", "nr_inodes=0")
    ),
    # nosuid and nodev too: bubblewrap adds them to every bind.
    "noexec": Row(payload="d03_census.py", bad="shm-not-executable", table=("noexec", "exec")),
    "the cgroup, memory": Row(payload="r03_memory.py", bad="anonymous-memory", prepare="cgroup"),
    "the cgroup, sockets": Row(payload="r10_kernel.py", bad="socket-buffers", prepare="cgroup"),
    "the cgroup, processes": Row(payload="r01_forks.py", bad="forks", prepare="cgroup"),
    "the cgroup, processors": Row(payload="r09_cpu.py", bad="cpu", prepare="cgroup", cpus=0.05),
    "the closing of descriptors": Row(
        payload="k05_traces.py", bad="descriptors", guest=("os.closerange(3, 1 << 16)", "pass")
    ),
}
# The guest is the same in both; so are the rlimits that it sets.
BOTH = {
    "PR_SET_DUMPABLE": Row(
        "the guest is dumpable", guest=("if prctl(4, 0) != 0 or prctl(3, 0) != 0:", "if False:")
    ),
    "PR_SET_DUMPABLE, unattested": Row(
        payload="o05_forge.py",
        bad="write:/proc/1/mem read:/proc/1/environ list:/proc/1/fd",
        guest=("if prctl(4, 0) != 0 or prctl(3, 0) != 0:", "if False:"),
        blind=True,
    ),
    "SIGINT at its default": Row(
        payload="t04_init.py", bad=DIES, guest=("signal.signal(number, signal.SIG_DFL)", "pass")
    ),
    "nothing ignored": Row(
        payload="t04_traps.sh",
        bad="term-ends trap-term nothing-ignored",
        guest=(
            "signal.signal(number, signal.SIG_DFL)",
            "signal.signal(number, signal.SIG_DFL); signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        ),
    ),
    "Python's own ignored signals": Row(
        payload="t04_traps.sh", bad="pipe-ends broken-pipe", guest=("setsigdef=RESET_SIGNALS", "setsigdef=[]")
    ),
    "orphans collected": Row(
        payload="t03_zombies.py",
        bad="orphans zombies",
        guest=("os.wait4(-1, os.WNOHANG)", "os.wait4(next(iter(self.by_pid), -1), os.WNOHANG)"),
    ),
    "scripts first": Row(payload="r06_hogs.py", bad="victim-first", guest=("SCRIPTS = 1000", "SCRIPTS = 0")),
    "rlimit core": Row(payload="u01_limits.py", bad="rlimit:CORE raise:CORE", rlimit="core"),
    "rlimit core, a dump": Row(payload="u02_core.py", bad="no-dump", rlimit="core"),
    "rlimit fsize": Row(payload="u01_limits.py", bad="rlimit:FSIZE raise:FSIZE", rlimit="fsize"),
    "rlimit fsize, sparse files": Row(payload="d02_sparse.py", bad="sparse-1t:/workspace", rlimit="fsize"),
    "rlimit fsize, memfd": Row(payload="r05_shared.py", bad=DIES, rlimit="fsize"),
    "rlimit nofile": Row(payload="u01_limits.py", bad="rlimit:NOFILE raise:NOFILE", rlimit="nofile"),
    "rlimit nofile, pipes": Row(payload="r07_pipes.py", bad="pipes", rlimit="nofile"),
    "rlimit memlock": Row(payload="u01_limits.py", bad="rlimit:MEMLOCK raise:MEMLOCK", rlimit="memlock"),
    "rlimit msgqueue": Row(payload="r05_shared.py", bad="message-queue", rlimit="msgqueue"),
    "rlimit sigpending": Row(payload="u01_limits.py", bad="rlimit:SIGPENDING", rlimit="sigpending"),
}
ROWS = {
    **{("container", name): row for name, row in CONTAINER.items()},
    **{("local", name): row for name, row in LOCAL.items()},
    **{(runtime, name): row for runtime in ("container", "local") for name, row in BOTH.items()},
}
# Settings whose absence nothing inside can notice, and who holds them instead.
UNNOTICED = {
    "AutoRemove": "the host's: conformance and fault tests look for what stays behind",
    "RestartPolicy": "the host's: a container that ended stays ended; pinned",
    "LogConfig": "the host's: the engine must not write output to its disk; pinned",
    "Mounts": "as Binds",
    "PortBindings": "without a network there is nothing to publish; pinned",
    "PublishAllPorts": "without a network there is nothing to publish; pinned",
    "MemorySwap": "needs a host with swap; pinned",
    "MemorySwappiness": "needs a host with swap; pinned",
    "OomKillDisable": "the engine's default; true would hang the sandbox; pinned",
    "OomScoreAdj": "for a host that runs out of memory as a whole; pinned",
    "CpuShares": "a weight between sandboxes; pinned",
    "Ulimits": "the guest sets the same by itself (tried together); nproc stands behind PidsLimit; pinned",
    "Runtime": "chosen by the operator",
    "--die-with-parent": "the host's: conformance tests kill it",
    "--new-session": "every run is made a session by the guest; pinned",
    "--clearenv": "bubblewrap is started with an empty environment; pinned",
    "--perms": "modes; pinned",
    "--dir": "folders to mount on; pinned",
    "--symlink": "names; pinned",
    "--chdir": "the guest chooses for each run; pinned",
    "--proc": "nothing starts without it",
    "--uid": "inside, any uid but 0 is as good; the one outside is looked at by test_battery",
    "--gid": "as --uid",
    "rtprio": "0 is the kernel's default; pinned",
    "nice": "0 is the kernel's default; pinned",
}
SLOW = {
    "the cgroup, sockets",
    "the filter, memory",
    "the cgroup, processors",
    "scripts first",
    "rlimit fsize, memfd",
    "rlimit fsize, sparse files",
    "rlimit memlock",
    "rlimit nofile, pipes",
    "rlimit sigpending",
}
# One of each kind, so that the default run stays short.
DEFAULT = {
    ("container", "CapDrop"),
    ("container", "CgroupnsMode"),
    ("container", "Init"),
    ("container", "MaskedPaths"),
    ("container", "Memory"),
    ("container", "NetworkMode"),
    ("container", "PR_SET_DUMPABLE"),
    ("container", "PidsLimit"),
    ("container", "ReadonlyRootfs"),
    ("container", "SecurityOpt: our profile"),
    ("container", "SecurityOpt: seccomp"),
    ("container", "Sysctls: shmall"),
    ("container", "Tmpfs: nr_inodes"),
    ("container", "User"),
    ("container", "rlimit core"),
    *(("local", name) for name in LOCAL.keys() | BOTH.keys() if name not in SLOW),
}


def test_every_setting_is_ablated_or_explained() -> None:
    spec = SandboxSpec("s", "", 1 << 28, 1, 64, 256, 1 << 26, 4096, 1 << 24, 1 << 24)
    body = container.create_body(spec, "image", 20_000, ["python3"], cgroup_v1=True, engine_runtime="runsc")
    settings = set(body["HostConfig"])
    args = local.arguments(
        spec,
        "",
        empty_fds=list(range(len(local.masked()))),
        file_fds=dict.fromkeys(local.FILES, 9),
        oom_file="/oom",
        prepared=True,
    )
    settings |= {word for word in args if word.startswith("--")}
    settings |= set(spec.rlimits())
    explained = set(UNNOTICED) | {
        "SecurityOpt",
        "Tmpfs",
        "Sysctls",
        "--ro-bind-try",
        "--bind",
        "--ro-bind-data",
    }
    explained |= {"--remount-ro"} | {name.removesuffix(", behind the filter") for name in LOCAL}
    explained |= set(CONTAINER) | {row.rlimit for row in BOTH.values()}
    assert settings <= explained, sorted(settings - explained)
    assert set(ROWS) >= DEFAULT
    for row in ROWS.values():
        assert set(row.bad.split()) - {DIES} <= set(CHECKS.get(row.payload, ()))
        assert bool(row.attested) != bool(row.payload)


@pytest.fixture(scope="module")
def there() -> Iterator[Host]:
    """Listeners on this machine."""
    with host() as found:
        yield found


def take_away(row: Row, patch: pytest.MonkeyPatch) -> None:
    """Patch the product as the row says."""
    if row.body is not None:
        made = container.create_body

        def body(*args: Any, **kwargs: Any) -> dict[str, Any]:
            found = made(*args, **kwargs)
            row.body(found)  # type: ignore[misc]
            return found

        patch.setattr(container, "create_body", body)
    if row.arguments is not None or row.filter == b"":
        built = local.arguments

        def arguments(*args: Any, **kwargs: Any) -> list[str]:
            found = built(*args, **kwargs)
            if row.arguments is not None:
                row.arguments(found)
            return found if row.filter != b"" else _Unfiltered(found)

        patch.setattr(local, "arguments", arguments)
    if row.prepare == "cgroup":
        patch.setattr(local.cgroups, "make", lambda *_: None)
        patch.setattr(SandboxSpec, "rlimits", _without(SandboxSpec.rlimits, "data", "nproc"))
        patch.setattr(local, "Facts", lambda **kwargs: _NoRlimits(**kwargs))
    elif row.prepare:
        assert row.prepare in local.PREPARE
        patch.setattr(local, "PREPARE", tuple(word for word in local.PREPARE if word != row.prepare))
    if row.table is not None:
        table = local.mount_table
        old, new = row.table
        assert old in table(SandboxSpec("", "", 1, 1, 1, 1, ORDER.disk, ORDER.inodes, 1, 1))
        patch.setattr(local, "mount_table", lambda spec: table(spec).replace(old, new))
    if row.filter:
        patch.setattr(local, "bpf_program", lambda: row.filter)
    if row.rlimit:
        patch.setattr(SandboxSpec, "rlimits", _without(SandboxSpec.rlimits, row.rlimit))
    if row.guest is not None:
        old, new = row.guest
        source = bundle.source().decode()
        assert source.count(old) == 1, f"the guest does not say {old!r} once"
        changed = source.replace(old, new).encode()
        patch.setattr(bundle, "source", lambda: changed)
        patch.setattr(bundle, "digest", lambda: "changed")
    if row.blind:
        patch.setattr(connection, "check_attestation", lambda *_: [])


class _Unfiltered(list[str]):
    """Arguments to which no filter can be added."""

    def __iadd__(self, more: Any) -> _Unfiltered:
        return self if "--seccomp" in more else super().__iadd__(more)


class _NoRlimits(local.Facts):
    """Facts that keep no rlimits in place of a cgroup."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, {} if name == "rlimits" else value)


def _without(
    made: Callable[[SandboxSpec], dict[str, int]], *names: str
) -> Callable[[SandboxSpec], dict[str, int]]:
    return lambda spec: {name: value for name, value in made(spec).items() if name not in names}


@pytest.mark.parametrize(("runtime", "name"), sorted(ROWS if SOAK else DEFAULT), indirect=["runtime"])
def test_it_is_noticed(
    executor: Executor, runtime: str, name: str, there: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ROWS[runtime, name]
    take_away(row, monkeypatch)
    order = ORDER.model_copy(update={"cpus": row.cpus})
    with Executor(runtime=runtime) as ablated:
        session = ablated.session(limits=order)
        if row.attested:
            with pytest.raises(SandboxStartError) as caught, session:
                pass
            if row.attested != DIES:
                assert "not what was ordered" in caught.value.message
                assert row.attested in caught.value.message
            return
        wanted = set(row.bad.split())
        try:
            with session:
                said = run(session, row.payload, there.environment(order))
        except ExecutorError as error:
            assert DIES in wanted, error
            return
        assert wanted - {DIES} <= set(said.bad), said
        assert DIES not in wanted or set(said.verdicts) != set(CHECKS[row.payload])

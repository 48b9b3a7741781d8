"""The host's abstract socket, by name: abstract sockets belong to the network namespace, not to a folder."""

import errno
import os
import socket


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


name = os.environ["HOST_ABSTRACT"]
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    client = socket.socket(socket.AF_UNIX, kind)
    try:
        client.connect("\0" + name)
        check("host-abstract:%s" % kind.name, False, "connected")
    except OSError as error:
        # The host has a stream socket: for the others even a refusal would show that they saw it.
        check("host-abstract:%s" % kind.name, error.errno == errno.ECONNREFUSED, error.strerror)
listed = [line.split()[-1] for line in open("/proc/net/unix").readlines()[1:] if "@" in line]
check("no-abstract-listed", not listed, listed)
for path in (
    "/var/run/docker.sock",
    "/run/docker.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/notify",
):
    check("socket:" + path, not os.path.exists(path))
own = socket.socket(socket.AF_UNIX)
own.bind("\0own")
own.listen(1)
client = socket.socket(socket.AF_UNIX)
client.connect("\0own")
check("own-abstract", True)

"""The way out over IP: there is none, and the loopback works. Sends nothing unless the loopback is all there is."""

import os
import socket


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def attempt(name, work, wanted=False):
    try:
        said, done = work(), True
    except OSError as error:
        said, done = error, False
    check(name, done == wanted, said)


def loopback(family, address):
    server = socket.socket(family)
    server.bind((address, 0))
    server.listen(1)
    client = socket.create_connection(server.getsockname()[:2], 2)
    peer, _ = server.accept()
    client.sendall(b"hello")
    return peer.recv(5)


def datagram(address, port, broadcast=False):
    sender = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    if broadcast:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    return sender.sendto(b"x", (address, port))


interfaces = [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]]
routes = [line.split()[:3] for line in open("/proc/net/route").readlines()[1:]]
alone = interfaces == ["lo"] and not routes
check("only-loopback", interfaces == ["lo"], interfaces)
check("no-routes", not routes, routes)
port = int(os.environ["HOST_PORT"])
attempt("host-loopback-4", lambda: socket.create_connection(("127.0.0.1", port), 2).recv(1))
attempt("host-loopback-6", lambda: socket.create_connection(("::1", port), 2).recv(1))
attempt("loopback-4", lambda: loopback(socket.AF_INET, "127.0.0.1"), True)
attempt("loopback-6", lambda: loopback(socket.AF_INET6, "::1"), True)
attempt("localhost", lambda: loopback(socket.AF_INET, socket.gethostbyname("localhost")), True)
OUTSIDE = {
    "tcp-4": lambda: socket.create_connection(("203.0.113.1", 80), 2),
    "tcp-6": lambda: socket.create_connection(("2001:db8::1", 80), 2),
    "metadata": lambda: socket.create_connection(("169.254.169.254", 80), 2),
    "udp-4": lambda: datagram("203.0.113.1", 53),
    "udp-6": lambda: datagram("2001:db8::1", 53),
    "multicast": lambda: datagram("224.0.0.251", 5353),
    "broadcast": lambda: datagram("255.255.255.255", 9, True),
    "name": lambda: socket.getaddrinfo("example.com", 80),
}
for name, work in OUTSIDE.items():
    if alone:
        attempt("out:" + name, work)
    else:
        check("out:" + name, False, "not tried: there is more than the loopback")

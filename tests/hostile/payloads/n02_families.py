"""Every family of sockets and every netlink protocol: a few are for scripts, the rest is a way out or kernel code
that no script needs. Sockets are only made; nothing is connected."""

import errno
import socket
import struct

FAMILIES = {
    "AX25": 3, "IPX": 4, "APPLETALK": 5, "NETROM": 6, "X25": 9, "KEY": 15, "PACKET": 17, "RDS": 21,
    "PPPOX": 24, "LLC": 26, "IB": 27, "MPLS": 28, "CAN": 29, "TIPC": 30, "BLUETOOTH": 31, "RXRPC": 33,
    "PHONET": 35, "IEEE802154": 36, "CAIF": 37, "ALG": 38, "NFC": 39, "VSOCK": 40, "KCM": 41,
    "QIPCRTR": 42, "SMC": 43, "XDP": 44, "MCTP": 45,
}  # fmt: skip
NETLINK = {
    "UNUSED": 1, "USERSOCK": 2, "FIREWALL": 3, "SOCK_DIAG": 4, "NFLOG": 5, "XFRM": 6, "SELINUX": 7,
    "ISCSI": 8, "AUDIT": 9, "FIB_LOOKUP": 10, "CONNECTOR": 11, "NETFILTER": 12, "KOBJECT_UEVENT": 15,
    "GENERIC": 16, "RDMA": 20, "CRYPTO": 21, "SMC": 22,
}  # fmt: skip
PROTOCOLS = {"raw-icmp": (2, 3, 1), "raw-all": (2, 3, 255), "raw-6": (10, 3, 58), "ping": (2, 2, 1)}


def check(name, ok, detail=""):
    print("CHECK", name, "OK" if ok else "BAD", detail, flush=True)


def makes(family, kind, protocol=0):
    try:
        socket.socket(family, kind, protocol).close()
        return "made"
    except OSError as error:
        return errno.errorcode[error.errno]


for name, family in FAMILIES.items():
    said = {kind: makes(family, kind) for kind in (1, 2, 3, 5)}
    check("family:" + name, "made" not in said.values(), said)
    pair = None
    try:
        pair = socket.socketpair(family, 1)
    except OSError:
        pass
    check("pair:" + name, pair is None)
for name, protocol in NETLINK.items():
    said = makes(16, 3, protocol)
    check("netlink:" + name, said != "made", said)
for name, arguments in PROTOCOLS.items():
    said = makes(*arguments)
    check("protocol:" + name, said != "made", said)
for name, family in (("UNIX", 1), ("INET", 2), ("INET6", 10)):
    check("has:" + name, makes(family, 1) == makes(family, 2) == "made")
# Route netlink lists interfaces, which libraries do; it must not change one. This asks to bring up the loopback.
route = socket.socket(16, 3, 0)
route.bind((0, 0))
route.send(struct.pack("=LHHLLBBHiII", 32, 16, 5, 1, 0, 0, 0, 0, 1, 1, 1))
answer = struct.unpack("=i", route.recv(4096)[16:20])[0]
check("route-changes", answer < 0, answer)

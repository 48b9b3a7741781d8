#!/bin/sh
# Runs as root inside the new root filesystem, offline, after the packages are in: the same script for every way
# of building, so that the results differ in nothing else.
set -eu

# The user that scripts see. Each session of the container runtime has a uid of its own (executor/runtimes/owner.py
# has the range), and a read-only root takes no entry at its start: so every one of them has its entry here, without
# which whoami, git, ssh-keygen and getpass fail. A look-up of the last one takes less than a millisecond.
if ! grep -q '^sandbox:' /etc/passwd; then
    { echo 1000; seq 20000 29999; } | sed 's,.*,sandbox:x:&:&:sandbox:/tmp/home:/bin/bash,' >>/etc/passwd
    { echo 1000; seq 20000 29999; } | sed 's,.*,sandbox:x:&:,' >>/etc/group
fi
rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid* /etc/subgid*

ln -sf python3 /usr/bin/python

# Mount points, and the folder that makes ESM imports resolvable from /skills/x and from /workspace.
mkdir -p /workspace /skills /run/executor /node_modules /usr/lib/executor
chmod 0755 /workspace /skills /run/executor /node_modules /usr/lib/executor
chmod 1777 /tmp

# No script may gain rights by starting a program.
find / -xdev -type f -perm /6000 -exec chmod ug-s {} +
find / -xdev -type d -perm /2000 -exec chmod g-s {} +

# Nothing that differs from one build to the next, nothing that names the machine it was built on.
: >/etc/machine-id
rm -rf /var/lib/dbus/machine-id /etc/.pwd.lock
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig /var/log/* /var/backups/*
rm -rf /var/lib/dpkg/*-old /usr/share/info/* /usr/share/gitweb /root/.cache
find /var/tmp -xdev -mindepth 1 -delete

# Python's library, compiled once: a read-only root cannot keep what an import compiles. "unchecked" because the
# sources never change, and because a time stamp would make each build different.
find /usr/lib/python3 /usr/lib/python3.* -name __pycache__ -type d -prune -exec rm -rf {} +
PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 python3 -I -m compileall -q -f -j 1 --invalidation-mode unchecked-hash \
    /usr/lib/python3 /usr/lib/python3.[0-9]*

# The same for runs: PYTHONPYCACHEPREFIX is set for them, and Python then looks nowhere else. The guest links what is
# below this folder into the cache of each sandbox; without it the first import of a session compiles the library.
cd / && find usr/lib/python3.[0-9]* -path '*/__pycache__/*.pyc' | while read -r file; do
    folder=/usr/lib/executor/pycache/${file%/__pycache__/*}
    mkdir -p "$folder"
    ln -s "/$file" "$folder/"
done

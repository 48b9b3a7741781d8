"""Dependencies of skills without a network in the sandbox: found, locked with hashes, built into layers.

    declared.py   what a skill says it needs, or what its imports suggest
    locks.py      the lock file: exact versions and hashes for one Python, one Node and one platform
    target.py     the interpreters of the image that a lock is for
    programs.py   runs uv and npm
    pypi.py       resolves and installs wheels with uv; builds and runs nothing
    npm.py        resolves and installs packages with npm; runs none of their scripts
    layers.py     the store of built layers, offered read-only to every sandbox
    building.py   makes a lock, and a layer, from the parts above
    offer.py      which layer a session gives a skill
    hints.py      what to do when a run fails because something is missing

Nothing of a skill is executed on the host: wheels and packages of Node are unpacked there, and bytecode is
compiled in a sandbox.
"""

from executor.deps.layers import Layer, LayerStore
from executor.deps.locks import Lock

__all__ = ["Layer", "LayerStore", "Lock"]

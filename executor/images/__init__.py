"""The images that sandboxes run on: built from one description, listed, found.

`images/<name>/` makes two things with the same files: an image on a Docker engine (`executor/<name>`) for the
container runtime, and a folder (`<data dir>/rootfs/<name>`) for the local one. There are two ways:

    base "debian"     mmdebstrap makes the system, Python adds Node and the guest: one layer, no registry.
                      The same inputs give the same bytes, so the same image id everywhere.
    base "<image>"    an ordinary `docker build` on an image of a registry, where there is no mmdebstrap.

What is fetched: Debian packages, by mmdebstrap or by apt inside the build, and Node's wheel, by pip, checked
against the pinned hash. All the rest is offline. The slow step (the system, half a minute) is kept and only
done again when the package list changes or `refresh` is asked for; a new guest costs seconds.

    description.py  the description and its keys     system.py     Debian packages into a system
    additions.py    Node and the guest               layer.py      both into one canonical tar
    engine.py       onto a Docker engine             store.py      into a folder on this host
    builder.py      the order of it all
"""

from executor.images.builder import BuiltImage, ImageInfo, build, list_images
from executor.images.description import (
    LABEL_GUEST,
    LABEL_IMAGE,
    LABEL_RECIPE,
    LABEL_ROOTFS,
    Progress,
    Target,
    reference,
)
from executor.images.store import rootfs_path
from executor.places import data_dir

__all__ = [
    "LABEL_GUEST",
    "LABEL_IMAGE",
    "LABEL_RECIPE",
    "LABEL_ROOTFS",
    "BuiltImage",
    "ImageInfo",
    "Progress",
    "Target",
    "build",
    "data_dir",
    "list_images",
    "reference",
    "rootfs_path",
]

"""`python -m executor.images build|list`: what `executor images` does, without its looks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from executor.errors import ExecutorError
from executor.images.builder import build, list_images
from executor.images.description import REGISTRY_BASE, TARGETS, reference


def main(arguments: Iterable[str] | None = None) -> int:
    """The same as `executor images`, without the command line's extras."""
    parser = argparse.ArgumentParser(prog="python -m executor.images", description="Build and list images.")
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("build", help="build what is out of date")
    make.add_argument("name", nargs="?", default="base")
    make.add_argument(
        "--target", action="append", choices=TARGETS, help="for which runtime (default: all that can work)"
    )
    make.add_argument(
        "--base", default="auto", help=f"debian, or an image such as {REGISTRY_BASE} (default: auto)"
    )
    make.add_argument("--refresh", action="store_true", help="take in new versions of the packages")
    make.add_argument("--network", help="network mode of a build on a registry's image")
    commands.add_parser("list", help="what is there")
    options = parser.parse_args(None if arguments is None else list(arguments))
    try:
        if options.command == "list":
            for info in list_images():
                guest = "guest matches" if info.guest_matches else "guest is stale"
                size = f"{info.size_bytes / 1e6:.0f} MB"
                print(f"{info.name}  {info.target:9}  {size}  {guest}  {info.where}  {info.digest}")
            return 0

        def show(step: str, message: str, fraction: float | None) -> None:
            share = "" if fraction is None else f" {fraction:.0%}"
            print(f"  {step}: {message}{share}", file=sys.stderr, flush=True)

        made = build(
            options.name,
            targets=options.target,
            base=options.base,
            refresh=options.refresh,
            network=options.network,
            progress=show,
        )
    except ExecutorError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("images: interrupted, nothing half-made was kept", file=sys.stderr)
        return 130
    what = f"built for {' and '.join(made.rebuilt)}" if made.rebuilt else "up to date"
    print(f"{made.name}: {what}, {made.size_bytes / 1e6:.0f} MB, {made.seconds:.1f} s")
    if made.image_id:
        print(f"  image   {reference(made.name)}  {made.image_id}")
    if made.rootfs:
        print(f"  rootfs  {made.rootfs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where a library is below a driver root: a driver that another container or the host installed, mounted in a folder.

Rule 1: a link there, of a file or a folder, is followed as within that root, and leads to nothing outside of it.
"""

import errno
import os
from pathlib import Path

# Of Red Hat, Debian and Ubuntu, Debian's alternatives, GKE, and NixOS.
IN_ROOT = (
    "usr/lib64",
    f"usr/lib/{os.uname().machine}-linux-gnu",
    f"usr/lib/{os.uname().machine}-linux-gnu/nvidia/current",
    "lib64",
    "usr/local/nvidia/lib64",
    "run/opengl-driver/lib",
)
MOST_LINKS = 40  # as the kernel has it


def below(root: str, name: str) -> str | None:
    """Return the path of a library below *root*; None where that root has none, or none that may be seen."""
    for folder in IN_ROOT:
        try:
            path = _within(Path(root), f"{folder}/{name}")
            if path.is_file():
                return str(path)
        except OSError:  # no permission; more links than there may be
            continue
    return None


def _within(root: Path, name: str) -> Path:
    """Follow the links of a name, those of its folders too, as they lead where *root* is /. Raise OSError."""
    path, left, links = root, list(reversed(Path(name).parts)), 0
    while left:
        part = left.pop()
        if part == "..":
            path = path if path == root else path.parent
        elif not (path / part).is_symlink():
            path /= part
        else:
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = (path / part).readlink()
            path = root if target.is_absolute() else path
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return path

"""Where a library is below a driver root: a driver that another container or the host installed, mounted in a folder.

Rule 1: a link there is followed as within that root.
"""

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
MOST_LINKS = 8


def below(root: str, name: str) -> str | None:
    """Return the path of a library below *root*; None where that root has none."""
    for folder in IN_ROOT:
        path = Path(root, folder, name)
        for _ in range(MOST_LINKS):
            if not path.is_symlink():
                break
            target = path.readlink()
            path = Path(root, *target.parts[1:]) if target.is_absolute() else path.parent / target
        if path.is_file():
            return str(path)
    return None

"""How a MIG instance's profile is found in its name, whoever tells that.

Rule 1: what is shown is the profile of the GPU instance, as dcgm-exporter shows it.
"""


def profile_of(name: str) -> str:
    """Find the GPU instance's profile in a MIG device's name: "NVIDIA A100 MIG 1c.3g.20gb" has "3g.20gb"."""
    profile = name.rpartition("MIG ")[2].strip()
    first, _, rest = profile.partition(".")
    return rest if first.endswith("c") and first[:-1].isdigit() else profile

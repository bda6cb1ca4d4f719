"""What is said of two GPUs: whether one reaches the other over NVLink.

Rule 1: the words are the label `link_status` of dcgm-exporter, by NVML's number; the other GPU goes by its UUID, and
        its number is added where the series is shown.
"""

from otelgpu.model import Attributes

P2P_STATUS = 9004

WORDS = (
    "OK",
    "ChipsetNotSupported",
    "GPUNotSupported",
    "TopologyNotSupported",
    "DisabledByRegKey",
    "NotSupported",
    "Unknown",
)


def pair(uuid: str, status: int) -> Attributes:
    """Name the series of a GPU and another one, by that one's UUID. A number without a word reads as unknown."""
    return (("link_status", WORDS[status] if status < len(WORDS) else WORDS[-1]), ("peer_uuid", uuid))

"""What to do about an XID, and how bad it is.

Rule 1: our own words, one sentence or two that a person on call can act on; the meaning is in xid.py.
Rule 2: every code that has a meaning has a row here (a test holds it); a code without one is said to be unknown.
Rule 3: a rank is by what the code says alone: WARN where the fault is an application's or the driver went on, ERROR
        where work was lost or the GPU wants a reset, FATAL where the GPU is gone or has to be looked at or replaced.

Source: the actions that NVIDIA's public "Xid Errors" documentation and its catalogue name for each code, and its guides
to memory errors and to GPU debugging, as of November 2026.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from otelgpu.fields.severity import Severity


class Advice(NamedTuple):
    """How bad it is, and what to do."""

    severity: Severity
    text: str


_INFO, _WARN, _ERROR, _FATAL = Severity
UNKNOWN = Advice(
    _WARN,
    "NVIDIA documents no such code: look for more in the kernel log, and report it to NVIDIA with an nvidia-bug-report "
    "if it comes again.",
)

_NOTHING = Advice(_INFO, "Nothing has to be done.")
_FOLLOWS = Advice(_WARN, "It follows from an error before it: look for that one. The application has to be restarted.")
_APP = Advice(
    _WARN,
    "Restart the application and look for its fault first (compute-sanitizer, cuda-gdb). If other applications meet "
    "it on this GPU too, run diagnostics.",
)
_DRIVER = Advice(
    _ERROR,
    "Restart the application. If it comes again, update the driver, then reset the GPU, and report it to NVIDIA with "
    "an nvidia-bug-report.",
)
_RESET = Advice(
    _ERROR,
    "Take work off the GPU and reset it (nvidia-smi -r, or reboot). If it comes again after that, run diagnostics and "
    "report it to NVIDIA.",
)
_MEDIA = Advice(
    _WARN,
    "Restart the application that encodes or decodes; check its streams and update the driver if it comes again.",
)
_DISPLAY = Advice(_WARN, "It concerns the display only; update the driver if it comes again. Compute work goes on.")
_COPY = Advice(
    _ERROR,
    "A copy engine failed: restart the application. If it comes again, reset the GPU and run diagnostics.",
)
_LINK = Advice(
    _ERROR,
    "Applications that use NVLink have to be restarted. Reset the GPUs on both ends; if it comes again, check the "
    "fabric manager, seating and cables, and run diagnostics.",
)
_FIRMWARE = Advice(
    _ERROR,
    "The GPU's own controller failed: reset the GPU. Update driver and firmware if it comes again, and report it to "
    "NVIDIA.",
)
_MECHANICS = Advice(_FATAL, "Check power cables, power supply, seating and cooling of the GPU before it is used again.")
_MAINTENANCE = Advice(_INFO, "No work was lost. Plan for maintenance if it comes often.")
_REPLACE = Advice(
    _FATAL,
    "Drain the node and reset the GPU. If it comes again, run NVIDIA's field diagnostics and have the GPU replaced.",
)
_SECURITY = Advice(
    _FATAL, "Take the GPU out of service and reset it; report it to NVIDIA with an nvidia-bug-report before it is used."
)


def _rows(codes: Iterable[int], advice: Advice) -> dict[int, Advice]:
    return dict.fromkeys(codes, advice)


XID_ADVICE: Mapping[int, Advice] = MappingProxyType(
    {
        0: _NOTHING,
        **_rows((1, 2, 3, 4, 6, 7, 11, 12, 16, 20, 21, 22, 24, 25, 26, 30, 32, 33, 66, 67), _DRIVER),
        **_rows((8, 9, 37, 38, 44, 46, 57, 59, 61, 62, 80), _RESET),
        **_rows((13, 31, 43, 69, 137, 138, 141, 152, 153), _APP),
        18: Advice(
            _FATAL,
            "Something switched off the GPU's access to memory on the bus: reboot, and check BIOS and PCIe switch.",
        ),
        **_rows((19, 56, 81, *range(111, 119)), _DISPLAY),
        **_rows((27, 28, 29, 34, 35, 36, 42, 47, 60, 65, 68, 73, 82, 83, 84, 86, 88, 89), _MEDIA),
        **_rows((*range(96, 106), 139, 142), _MEDIA),
        **_rows((70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _COPY),
        45: _FOLLOWS,
        48: Advice(
            _ERROR,
            "Work on this GPU was lost. Take work off it and reset it; if 63 follows, the row is repaired by the "
            "reset, if 64 follows or it comes again, have the GPU replaced.",
        ),
        54: Advice(_FATAL, "Connect the auxiliary power cables of the board, or replace them."),
        58: Advice(
            _FATAL, "Check cooling and power, and clocks that were set by hand; then run diagnostics on the memory."
        ),
        63: Advice(
            _INFO,
            "A bad row or page was marked for repair. Reset the GPU when its work has ended: the repair is made then.",
        ),
        64: Advice(
            _FATAL, "A bad row or page could not be marked. Drain and reset; if it comes again, have the GPU replaced."
        ),
        74: _LINK,
        78: Advice(
            _ERROR, "A vGPU could not be started: check licence, profile and the versions of host and guest driver."
        ),
        79: Advice(
            _FATAL,
            "The bus no longer reaches the GPU: drain and reboot the node (power it off and on). If it comes again, "
            "check cooling, power supply, seating and PCIe, then have the GPU replaced.",
        ),
        92: Advice(
            _WARN, "Nothing at once: errors were corrected. If the rate stays high, run diagnostics on the memory."
        ),
        93: Advice(
            _INFO, "Something writes to the InfoROM too often: look for tools that change GPU settings in a loop."
        ),
        94: Advice(
            _ERROR,
            "A memory error hit one application and no other: restart that one. Reset the GPU when the others have "
            "ended.",
        ),
        95: Advice(
            _FATAL,
            "A memory error may have hit every application: stop them all and reset the GPU before it is used again. "
            "If it comes again, have the GPU replaced.",
        ),
        **_rows((106, 107), _NOTHING),
        109: Advice(
            _ERROR,
            "Restart the application; if it still hangs, reset the GPU. Update the driver if it comes again.",
        ),
        **_rows((110, 151, 169, 170), _SECURITY),
        **_rows((119, 120), _FIRMWARE),
        121: Advice(
            _WARN, "The chip-to-chip link corrected an error. Reset GPU or node at maintenance; watch for more."
        ),
        **_rows((122, 123, 124), _FIRMWARE),
        125: Advice(
            _ERROR, "Data in the InfoROM cannot be read: update its firmware; have the board replaced if it stays."
        ),
        136: _LINK,
        140: Advice(
            _ERROR,
            "A memory error was not recovered: take work off the GPU and reset it. Watch for 63 and 64 afterwards.",
        ),
        143: Advice(_FATAL, "The GPU does not start: reset it or reboot. If that does not help, have it replaced."),
        **_rows(range(144, 151), _LINK),
        154: Advice(
            _WARN,
            "The driver has changed what it asks for: see the recovery action of the GPU (none, reset, reboot, drain) "
            "and do that.",
        ),
        155: Advice(_WARN, "An NVLink was taken down or changed by software: check fabric manager and link states."),
        156: _MAINTENANCE,
        157: _REPLACE,
        158: _RESET,
        159: _RESET,
        160: Advice(_WARN, "A memory channel was taken out of use; reset the GPU at maintenance and watch for more."),
        161: _REPLACE,
        **_rows((162, 163), _NOTHING),
        164: _MAINTENANCE,
        165: Advice(
            _WARN, "Power smoothing no longer works on this GPU; plan its replacement where the power supply needs it."
        ),
        166: Advice(_ERROR, "Set up encryption of the NVLinks again (reset the GPUs and the fabric manager)."),
        167: _MECHANICS,
        168: Advice(_ERROR, "Something wrote to protected memory: restart the application and update the driver."),
        171: _RESET,
        172: _RESET,
    }
)


def xid_advice(code: int) -> Advice:
    """Say how bad a code is and what to do about it; UNKNOWN for a code without a row."""
    return XID_ADVICE.get(code, UNKNOWN)

"""The fields of single NVLinks that the simulated driver answers: traffic, and no errors.

Rule 1: the traffic of a GPU is shared evenly among its links.
Rule 2: DCGM gave out ids for links 0-5, 6-11, 12-14 and 15-17 in four lots.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from otelgpu.sources.simulated.answers import GPM, NVLINK, WHOLE, BoardRow, Need
from otelgpu.sources.simulated.gpu import MEBI, Gpu, Now

_LOTS = ((0, 6), (6, 12), (12, 15), (15, 18))
_ERRORS = ((400, 451, 406, 481), (410, 457, 416, 484), (420, 463, 426, 487), (430, 469, 436, 491))
_TRAFFIC = (440, 475, 446, 494)


def _has(link: int, gpu: Gpu) -> bool:
    return link < gpu.model.nvlinks


def _no_error(_: Now) -> int:
    return 0


def _share(times: float, now: Now) -> float:
    """Give the traffic of one link, in bytes per second and direction, so many times."""
    return times * now.link_bytes / now.gpu.model.nvlinks


def _ids(firsts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    for (begin, end), first in zip(_LOTS, firsts, strict=True):
        yield from ((link, first + link - begin) for link in range(begin, end))


def _rows() -> Iterator[tuple[int, BoardRow]]:
    for link, both in _ids(_TRAFFIC):
        needs = (NVLINK, Need(partial(_has, link), f"this product has no NVLink {link}"))
        yield both, BoardRow(partial(_share, 2.0), needs)
        yield from ((first + link, BoardRow(partial(_share, 1.0), needs)) for first in (825, 879))
        profiled: Callable[[Now], float] = partial(_share, 1.0 / MEBI)
        yield from ((1040 + 2 * link + way, BoardRow(profiled, (GPM, *needs, WHOLE))) for way in range(2))
    for firsts in _ERRORS:
        for link, ident in _ids(firsts):
            needs = (NVLINK, Need(partial(_has, link), f"this product has no NVLink {link}"))
            yield ident, BoardRow(_no_error, needs)


LINKS: Mapping[int, BoardRow] = dict(_rows())

"""Pages as bytes, shared by simultaneous scrapes.

Rule 1: one page per snapshot, format and visibility; whoever comes while it is being made gets the same bytes.
Rule 2: everything that waits (for a sweep) or computes (text, gzip) runs in the executor, never on the loop.
"""

import asyncio
import gzip
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property

from otelgpu.export.page import Format, PageSource
from otelgpu.model import Snapshot

GZIP_LEVEL = 4  # a page of label text shrinks by 20 already here; higher levels cost time and gain little


@dataclass(frozen=True)
class Page:
    """One page, plain and compressed (made when first asked for)."""

    body: bytes

    @cached_property
    def gzipped(self) -> bytes:
        """The page as a gzip stream; the same bytes give the same stream."""
        return gzip.compress(self.body, GZIP_LEVEL, mtime=0)


class Pages:
    """Gives the current page. *refresh* and *hasten* are the sampler's; *is_fresh* says what may be shown."""

    def __init__(
        self,
        source: PageSource,
        *,
        refresh: Callable[[float | None], Snapshot | None],
        hasten: Callable[[float], None],
        is_fresh: Callable[[Snapshot], bool],
        executor: Executor,
    ) -> None:
        self._source = source
        self._refresh = refresh
        self._hasten = hasten
        self._is_fresh = is_fresh
        self._executor = executor
        self._under_way: dict[Format, asyncio.Task[Page]] = {}
        self._made: dict[Format, tuple[tuple[float | None, bool], Page]] = {}

    async def get(self, form: Format, deadline: float | None, *, compressed: bool) -> bytes:
        """Return the page in *form*, with readings no older than the sampler allows.

        Wait at most *deadline* seconds for the driver (None: the sampler's own deadline).
        """
        task = self._under_way.get(form)
        if task is None:
            task = asyncio.create_task(self._make(form, deadline))
            self._under_way[form] = task
            task.add_done_callback(lambda _: self._under_way.pop(form, None))
        elif deadline is not None:
            self._hasten(deadline)
        page = await asyncio.shield(task)
        if not compressed:
            return page.body
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: page.gzipped)

    async def _make(self, form: Format, deadline: float | None) -> Page:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._page, form, deadline)

    def _page(self, form: Format, deadline: float | None) -> Page:
        snapshot = self._refresh(deadline)
        shown = snapshot is not None and self._is_fresh(snapshot)
        state = (None if snapshot is None else snapshot.at, shown)
        made = self._made.get(form)
        if made is not None and made[0] == state and snapshot is not None:
            return made[1]
        page = Page(self._source.page(snapshot, form, shown=shown))
        self._made[form] = (state, page)
        return page

"""Pages as bytes, shared by simultaneous scrapes.

Rule 1: whoever comes while a page is being made gets the same bytes. A page is used again for at most KEEP seconds
        and for its own snapshot and owners: what it says of otelgpu itself (the age of the readings above all) goes on.
Rule 2: a scraper that cannot wait for the sweep gets a page of what is there by then, which is nobody else's.
Rule 3: everything that waits (for a sweep) or computes (text, gzip) runs in the executor, never on the loop.
"""

import asyncio
import gzip
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property

from otelgpu.export.page import Format, PageSource
from otelgpu.model import NOBODY, Owners, Snapshot

GZIP_LEVEL = 4  # a page of label text shrinks by 20 already here; higher levels cost time and gain little
KEEP = 1.0  # seconds


@dataclass(frozen=True)
class Page:
    """One page, plain and compressed (made when first asked for)."""

    body: bytes
    state: tuple[float | None, bool, int]  # when the snapshot was taken, whether it is shown, which owners
    made_at: float

    @cached_property
    def gzipped(self) -> bytes:
        """The page as a gzip stream; the same bytes give the same stream."""
        return gzip.compress(self.body, GZIP_LEVEL, mtime=0)


class Pages:
    """Gives the current page. *refresh* is the sampler's; *is_fresh* says what may be shown.

    *owners* says, without waiting, who uses the devices of a snapshot.
    """

    def __init__(
        self,
        source: PageSource,
        *,
        refresh: Callable[[float | None], Snapshot | None],
        is_fresh: Callable[[Snapshot], bool],
        executor: Executor,
        owners: Callable[[Snapshot], Owners] = lambda _: NOBODY,
    ) -> None:
        self._source = source
        self._refresh = refresh
        self._is_fresh = is_fresh
        self._executor = executor
        self._owners = owners
        self._under_way: dict[tuple[Format, float | None], asyncio.Task[Page]] = {}
        self._made: dict[Format, Page] = {}

    async def get(self, form: Format, deadline: float | None, *, compressed: bool) -> bytes:
        """Return the page in *form*, with readings no older than the sampler allows.

        Wait at most *deadline* seconds for the driver (None: the sampler's own deadline).
        """
        task = self._making(form, None)
        await asyncio.wait({task}, timeout=deadline)
        if not task.done():
            task = self._making(form, 0.0)
        page = await asyncio.shield(task)
        if not compressed:
            return page.body
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: page.gzipped)

    def _making(self, form: Format, patience: float | None) -> asyncio.Task[Page]:
        """Have a page made, unless one is being made already."""
        key = form, patience
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._make(form, patience))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        return task

    async def _make(self, form: Format, patience: float | None) -> Page:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._page, form, patience)

    def _page(self, form: Format, patience: float | None) -> Page:
        snapshot = self._refresh(patience)
        shown = snapshot is not None and self._is_fresh(snapshot)
        owners = NOBODY if snapshot is None else self._owners(snapshot)
        state = (None if snapshot is None else snapshot.at, shown, owners.identity)
        now = time.monotonic()
        made = self._made.get(form)
        if made is not None and made.state == state and now - made.made_at < KEEP:
            return made
        page = Page(self._source.page(snapshot, form, shown=shown, owners=owners), state, now)
        if patience is None:
            self._made[form] = page
        return page

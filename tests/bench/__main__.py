"""`python -m tests.bench`: measure everything; exit 1 when a bound is not kept."""

import sys

from tests.bench.driver import driver_figures
from tests.bench.embed import embed_figures
from tests.bench.owners import owner_figures
from tests.bench.pages import page_figures
from tests.bench.process import process_figures
from tests.bench.processes import use_figures
from tests.bench.push import push_figures


def main() -> int:
    """Print a line for each figure as it is measured."""
    kept = True
    for figures in (
        page_figures,
        owner_figures,
        use_figures,
        driver_figures,
        push_figures,
        process_figures,
        embed_figures,
    ):
        for figure in figures():
            kept = kept and figure.is_kept
            mark = "ok  " if figure.is_kept else "MISS"
            value = f"{figure.value:.3g} {figure.unit}".strip()
            detail = f"  ({figure.detail})" if figure.detail else ""
            sys.stdout.write(
                f"{mark} {figure.name}: {value}, at most {figure.bound:g} {figure.unit}".rstrip() + detail + "\n"
            )
            sys.stdout.flush()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

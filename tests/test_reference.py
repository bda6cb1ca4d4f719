"""docs/metrics.md says what the catalogue says."""

from otelgpu.reference import with_metrics_table
from tests.conftest import ROOT


def test_the_table_of_metrics_is_up_to_date() -> None:
    """Somebody who looks a name up finds what the page really shows; `make golden` rewrites the table."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")

    assert with_metrics_table(text) == text

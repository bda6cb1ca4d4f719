"""`python -m otelgpu` is the command `otelgpu`."""

import sys

from otelgpu.cli import main

if __name__ == "__main__":
    sys.exit(main())

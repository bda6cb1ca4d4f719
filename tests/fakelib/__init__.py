"""What the fake libraries in C share: how they are built, how a scenario is written, how one is looked at and driven.

A fake is a folder with its C sources, a `Build`, a scenario of frozen dataclasses and a subclass of `Fake`:

    tests/fakenvml  libnvidia-ml.so.1, the NVIDIA driver
    tests/fakedcgm  libdcgm.so.4 (or .so.3), DCGM

The text of a scenario is read by c/text.c, its rules for functions (answers, errors, delays, hangs, crashes) by
c/rules.c.
"""

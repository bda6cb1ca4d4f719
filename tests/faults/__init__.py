"""What breaks on real machines, each shown against the fake driver with the figure that is promised for it.

Rule 1: a test goes through the next door out: what the driver does comes in, the page is looked at.
Rule 2: every GPU here has numbers of its own (`distinct`), so that a value under a wrong UUID is seen at once.
"""

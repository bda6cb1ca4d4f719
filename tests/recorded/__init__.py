"""Converters: from what somebody recorded of a real machine to a scenario in which the fake driver is in that state."""

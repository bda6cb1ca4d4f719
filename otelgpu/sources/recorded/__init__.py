"""Recordings of what a source was asked and what came back, for bug reports: written, and asked instead of a driver.

Rule 1: nothing here is imported before somebody records or replays.
"""

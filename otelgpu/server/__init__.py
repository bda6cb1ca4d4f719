"""The HTTP side: one tornado loop that never waits for a driver."""

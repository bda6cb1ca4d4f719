"""Speed and memory, measured: `make bench` prints every figure with its bound."""

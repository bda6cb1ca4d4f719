"""WHO uses the GPUs: pods and jobs, found out in the background, handed to the readers as one frozen table."""

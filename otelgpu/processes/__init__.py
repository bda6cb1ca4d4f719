"""WHOSE a process is: from its id to the pod, container, job or unit that it belongs to, by way of /proc."""

"""Emulated hook tools of Juju 3.6, one module a family; standard library only.

The package runs under ``python3 -I -S`` from a wrapper on the hook's PATH, far from the lab's own
environment, so nothing here may import from the lab. Arguments and answers are those that ops 3.9
sends and reads.
"""

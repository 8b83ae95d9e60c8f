"""Peers other than torch, each in an interpreter of its own.

Their thread pools, event loops and settings disturb neither mpgrad nor each other there. What runs
in those interpreters never imports mpgrad, which changes how OpenBLAS's threads wait.
"""

"""Peers other than torch, each in its own interpreter.

There their thread pools, event loops and settings disturb neither mpgrad nor each other. Code in
those interpreters never imports mpgrad, which changes how OpenBLAS's threads wait.
"""

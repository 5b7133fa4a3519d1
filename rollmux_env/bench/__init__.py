"""The bench: runs policies over seeds in several processes, and computes intervals.

It is given policy objects and does not know any policy by name.
"""

"""
Say before a deployment what in an application goes wrong on a green worker.

Internal: the command ``greenline doctor`` is the public face.
"""

"""
Start, check and close the resources of a worker, and drain its connections.

Internal: applications import nothing from here.
"""

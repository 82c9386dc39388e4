"""Connection to Ray, resources of a trial, capacity of a cluster.

connect        Connects to Ray, or starts a local one on loopback; its head; nodes that come and go
ray_internals  Everything used of Ray besides its public API
resources      The resources of a trial, and how many trials fit
"""

"""Where a search runs: Ray, the resources of a trial, the capacity of a cluster.

connect        Connects to the running Ray cluster, or starts a local Ray
loopback       Makes a local Ray listen on loopback only
token          Checks whether a cluster accepts the authentication token
ray_internals  All that is used of Ray beside its public API
resources      The resources of a trial, and how many trials fit
head           Watches Ray's head, whose end ends a search
capacity       The capacity for trials of a cluster whose nodes come and go
"""

"""Connection to Ray, resources of a trial, capacity of a cluster.

connect        Connects to the running Ray cluster, or starts a local Ray on loopback, and watches its head
ray_internals  Everything used of Ray besides its public API
resources      The resources of a trial, and how many trials fit
capacity       The capacity for trials of a cluster whose nodes come and go
"""

"""Connection to Ray, resources of a trial, capacity of a cluster.

connect        Connects to the running Ray cluster, or starts a local Ray
loopback       Makes a local Ray listen on loopback only
token          Checks whether a cluster accepts the authentication token
cuda_mps       NVIDIA's Multi-Process Service for the processes of a local Ray
ray_internals  Everything used of Ray besides its public API
resources      The resources of a trial, and how many trials fit
head           Watches Ray's head node; a search ends when it does
capacity       The capacity for trials of a cluster whose nodes come and go
"""

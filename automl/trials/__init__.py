"""Trials on a cluster: the actor that trains one, the session on Ray, errors and signals.

trial          One trial: the code of each training process, and the actor that Ray Tune reuses
job            A trial in its process: the job, the common loop that trains it, the error that ends it
multi_worker   Trainings on several devices: a TorchTrainer whose workers take one training after the other
session        Workers of a run, its signals, and the pool of commands that use one machine
ray_workers    Ray with capacity for trials of one shape, and a run of trials on it
nodes          Computes on the nodes of a cluster before the trials start
measurements   Measures trainings before the trials start: the fraction of a GPU for each, and their pace
match_output   Finds a regular expression in the output; a program of its own
supervise      Runs a command and ends its processes with the caller; a program of its own
train          Trains one configuration without a search
train_options  The options of `train`
"""

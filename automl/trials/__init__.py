"""Trials on a cluster: the actor that trains one, the session on Ray, errors and signals.

trial          One trial: the code of each training process, and the actor that Ray Tune reuses
job            A trial in its process: what is known before its training begins
loop_trial     Trains a trial with this project's training loop
multi_worker   One trial on several devices: a TorchTrainer of Ray Train inside a Tune function
session        Ray with capacity for trials of one shape, and the run of a scheduler's trials on it
gpu_sharing    Finds the fraction of a GPU for each trial, before the trials start
match_output   Finds a regular expression in the output; a program of its own
supervise      Runs a command and ends its processes with the caller; a program of its own
pace           Times trainings under the load of trials, for a forecast
interrupt      Ctrl-C and SIGTERM: the first stops a search gracefully, the second at once
sent_code      User-defined code on its way to the processes of trials
failure        Classifies the error that ends a trial: the trial's or the node's
train          Trains one configuration without a search
train_options  The options of `train`
train_workers  Trains one configuration with several workers, without Tune
"""

"""Trials on a cluster: the actor that trains one, the session on Ray, classifying errors, signals.

trial          One trial: what each training process does, and the actor that Ray Tune reuses
multi_worker   One trial on several devices: a TorchTrainer of Ray Train inside a Tune function
session        Ray with capacity for trials of one shape, and how a scheduler's trials run on it
pace           Times trainings by the clock as trials run, for a forecast
interrupt      Ctrl-C and SIGTERM: the first stops a search gracefully, the second at once
failure        Classifies the error that ends a trial: the trial's or the node's
train          Trains one configuration without a search
train_workers  Trains one configuration with several workers, without Tune
"""

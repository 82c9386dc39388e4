"""Trials on a cluster: the actor that trains one, the session on Ray, and what ends them.

trial         One trial: what every process that trains does, and the actor that Ray Tune reuses
multi_worker  One trial on several devices: a TorchTrainer of Ray Train inside a Tune function
run           Running a scheduler's trials with all that listens to them: a search and a confirmation alike
session       Ray with capacity for trials of one shape, for as long as a search or a confirmation takes
interrupt     Ctrl-C and SIGTERM: the first stops a search in order, the second at once
failure       Whether an error that ends a trial is the trial's or the node's
hits          Which test inputs a training answered right
train         One configuration without a search
"""

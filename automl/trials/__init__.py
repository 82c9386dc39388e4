"""Trials on a cluster: the actor that trains one, the session on Ray, and what ends them.

failure       What the process of a trial says of an error that ends its work: is it the trial's, or the nod
hits          Which test inputs a training answered right: a bit for each, beside its checkpoint, and kept l
interrupt     Ctrl-C and SIGTERM: the first stops a search in order, the second at once
multi_worker  One trial on several devices: a TorchTrainer of Ray Train inside a Tune function
run           Running a scheduler's trials with all that listens to them: a search and a confirmation alike
session       Ray with capacity for trials of one shape, for as long as a search or a confirmation takes
train         One configuration without a search, with what SimpleSelfAttention's training script offers
trial         One trial: what every process that trains does, and the actor that Ray Tune reuses from trial
"""

"""What a configuration costs, known before it is trained: parameters, MACs, memory, latency, time ratio.

forecast    Predicts the costs of a configuration before it is built
model       What a model costs, without a dataset
profile     Measures the costs of a configuration before it is trained
subject     The models of all tasks without a dataset: how each is built and what it takes
time_ratio  Epoch time relative to the baseline, measured before training (a confirmation's own:
            `confirm.statistics.paired_ratio`)
work        Counts the operations, MACs and bytes of a training step, and measures their unit costs
"""

"""Costs of a configuration before it is trained: parameters, MACs, memory, latency, time ratio.

forecast      Predicts the costs of a configuration before it is built
gpu_fraction  The fraction of a GPU for each trial, by a measurement of the baseline
profile       Measures the costs of a configuration before it is trained, and those of a model
time_ratio    Epoch time relative to the baseline, measured before training. The ratio of a
              confirmation is `confirm.statistics.paired_ratio`
trimmed_mean  The mean of paired measurements without their extremes
"""

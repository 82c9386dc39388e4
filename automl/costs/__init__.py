"""What a configuration costs before it is trained: parameters, MACs, memory, latency, time ratio.

forecast    What a configuration will cost, before it is built
profile     What a configuration costs, measured before it is trained
time_ratio  How many times as long as the baseline's an epoch of a trial takes
work        The work of a training step, counted
"""

"""What a configuration costs before it is trained: parameters, MACs, memory, latency, time ratio.

forecast    What a configuration will cost, before it is built: its backbone counted once, attentions by for
profile     What a configuration costs, measured before it is trained: parameters, MACs, memory, latency, pa
time_ratio  The time ratio: how many times as long as the baseline's an epoch of a trial takes
work        The work of a training step, counted: operators, multiply-adds and bytes, and what each costs on
"""

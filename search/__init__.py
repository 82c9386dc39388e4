"""Everything that decides what to try next.

config            The configuration of one trial
serialise         Dataclasses as JSON, and back
loading           Objects of one's own: `file.py:name` and `package.module:name`
metric            What a score is: which way is better, and how people tell it
record            What is known of a trial, what it reports, and who wants to hear of it
spaces            Search spaces: their table, and loading one's own
image_spaces      The built-in spaces of images
sensor_spaces     The built-in spaces of sensors
choices           What spaces are made of: drawing a placement and drawing hyperparameters
given             What a space gives instead of drawing it, checked
size              How large a space is, estimated from draws
samplers          The samplers a search can be led by: Optuna's, or one's own
halving           Asynchronous successive halving
study             The Optuna study of a search: one file in its folder
journal           Optuna's journal in a file that one process writes
trial_scheduler   The trials of a study as they run
search_scheduler  What a search decides: what is tried next and what is pruned
fixed_scheduler   Trials that are known beforehand, in order
tuner             The scheduler on Ray Tune
"""

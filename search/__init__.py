"""Decides what is tried next: configurations, search spaces, samplers, pruning, the study, Ray Tune.

config               The configuration of one trial
serialise            Dataclasses as JSON, and back
atomic               Temporary names of files that are being written, and what killed processes left of them
metric               Metrics: direction, unit, how they are displayed, and what guessing comes to
class_metrics        Metrics of classifiers, each of which computes itself
class_statistics     The arithmetic of metrics of classes
score_card           Recall, precision and F1 of each class, from counts of answers
record               The record of a trial, and its reports
callback             Callbacks on the events of a search, a confirmation and their trials
memory_study         A study in memory, for trials that are drawn and not trained
space                A search space: a function that draws configurations, and what goes with it
spaces               The search spaces by name, and loading user-defined ones
image_spaces         The built-in spaces of images
decomposed_spaces    The built-in spaces of decomposed attention in ResNet-50 and ResNeXt-101
vit_spaces           The built-in spaces of vision transformers
sensor_spaces        The built-in spaces of sensors
code_spaces          The built-in space of code search
stereo_spaces        The built-in spaces of stereo
detection_spaces     The built-in spaces of detection
segmentation_spaces  The built-in space of segmentation
study_spaces         The grids of studies: published tables, for `--sampler grid`
choices              Building blocks of spaces: draws a placement, draws hyperparameters
fixed_parameters     Checks the parameters that a space fixes: `baseline`, `published`, `plain`
size                 How large a space is, estimated from draws
samplers             The samplers: Optuna's, ours of placements, or user-defined ones
optuna_internals     All that is used of Optuna beside its public API
placement_sampler    A sampler of placements: Thompson draws of what each part of one adds
placement_posterior  What a study says of placements: the best trial, effects and their intervals
placement_planner    The best placement by one draw of the effects of its parts
placement_model      A hierarchical Gaussian model of what each part of a placement adds to the score
shared_trainings     Which shared partial training a trial goes on from, where placements go into trained
                     models
halving              Asynchronous successive halving
study                The Optuna study of a search: one file in its folder
study_lines          Checks the lines of a study's file
journal              Optuna's journal storage with a single writer
trial_scheduler      Runs the trials of a study: their state, reports and ends
search_scheduler     The scheduler of a search: what is tried next and what is pruned
fixed_scheduler      The scheduler of a fixed list of trials, for confirmations and grids
grid                 The cells of a grid: every combination of a space's choices, in order
grid_scheduler       The scheduler of a grid: each cell once for each seed
tuner                Runs the scheduler on Ray Tune; restarts trials whose process died (RETRIES)
"""

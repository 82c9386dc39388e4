"""Search spaces, trial configurations, samplers, pruning, the study, and the loop on Ray Tune.

config               The configuration of one trial
metric               Metrics: direction, unit, display, and the score of guessing
class_metrics        Metrics of classifiers, with their computation
class_statistics     Arithmetic of classes: imbalance, guessing, recall, precision and F1
record               The record of a trial, its reports, and callbacks on its events
space                A search space: a function that draws configurations; the spaces by name
choices              Building blocks of spaces: draw placement and hyperparameters, read them back
drawn                The draws of a space that all checks share: fingerprint, baseline, cells
samplers             Optuna's samplers, the sampler of placements, and user-defined ones
optuna_internals     Everything that is used of Optuna beside its public API
placement_effects    The effects that add up to the score of a placement, weighed, or measured before
placement_sampler    Thompson sampling of placements
placement_posterior  The best trial of a study, effects of placements and their intervals
placement_planner    The best placement by one draw of the effects
solver               The best placement under limits, by exchanging modules
placement_model      A hierarchical Gaussian model of the effects of placements on the score
halving              Asynchronous successive halving
study                The Optuna study of a search: one file in its folder
journal              The file of a study: Optuna's journal with a single writer, and checks of its lines
trial_scheduler      Base class of schedulers: state, reports and ends of trials, time left
search_scheduler     The scheduler of a search: chooses and prunes trials
fixed_scheduler      The schedulers of a fixed list of trials, for confirmations, and of a grid
grid                 Grids: the cells of a space in order, and the spaces of published tables
tuner                Runs a scheduler on Ray Tune, and restarts trials whose process died
"""

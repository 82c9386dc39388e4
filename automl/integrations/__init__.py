"""Callbacks that connect the loop of another library to a trial. Each imports its library alone.

lightning     `TrialCallback` for Lightning's `Trainer`
transformers  `TrialCallback` for Hugging Face's `Trainer`
fastai        `TrialCallback` for fastai's `Learner`
checkpoint    A library's checkpoint files, as part of a trial's checkpoint
"""

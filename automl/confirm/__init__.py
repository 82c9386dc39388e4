"""Is it really better? Finalists against the tuned baseline on fresh paired seeds, and the verdict.

arms        Who takes part in a confirmation: finalists, the tuned baseline, and what tells where a gain com
compare     Trained models side by side, with the statistics of a confirmation
protocol    What a confirmation is on disk: its plan, fixed before the first trial, its study and its verdic
run         Is it really better? Finalists and the tuned baseline, trained anew with fresh paired seeds
run_spec    A confirmation's run in MLflow
scheduler   Who judges a confirmation as its scores come in, and says what is still to be trained
statistics  Is it better? Differences over seeds: how large, how sure, and how many seeds it takes
verdict     The verdict of a confirmation, in numbers and in words
"""

"""Is it really better? Finalists against the tuned baseline on fresh paired seeds, and the verdict.

run_confirm       Retrains a search's finalists and its tuned baseline with fresh paired seeds
variants          Which models take part: the finalists, the tuned baseline and the controls
design            What a confirmation tests: seeds, margin, metric
protocol          A confirmation on disk: its plan, fixed before the first trial, its study and its verdict
scheduler         Decides what is still to be trained, whenever a score arrives
scores            The results of the trainings: each variant's score and cost at each seed
statistics        Differences over seeds: estimates, intervals, tests, power
judge             The verdict on the finalists, from the scores so far
verdict           The verdict and the comparisons, as values and as JSON
written           Reads `verdict.json`, for the commands that go by a verdict
wording           The sentences of a verdict
confirmation_run  A confirmation's run in MLflow
compare           `automl compare`: trained models, with the statistics of a confirmation
"""

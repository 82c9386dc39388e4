"""Is it really better? Finalists against the tuned baseline on fresh paired seeds, and the verdict.

run         A search's finalists and its tuned baseline, trained anew with fresh paired seeds
arms        Which models take part: the finalists, the tuned baseline and the controls
question    What a confirmation asks
protocol    What a confirmation is on disk: its plan, fixed before the first trial, its study and its verdict
scheduler   What is still to be trained, decided anew whenever a score comes in
scores      What the trainings came to: each arm's score at each seed, and what it cost
statistics  Differences over seeds: how large, how sure, and how many seeds it takes to see one
judge       The verdict on the finalists, from the scores there are
verdict     What a confirmation has come to
wording     A verdict in words
run_spec    A confirmation's run in MLflow
compare     Trained models side by side, with the statistics of a confirmation
"""

"""Judge what training shows: comparisons on fresh paired seeds, their rules and statistics, and verdicts.

run_confirm     Compare a search's finalists with its tuned baseline on fresh seeds
trainings       Train what a comparison still needs, and judge it
options         The options of `confirm`, `compare` and `referee`
variants        Select the variants: finalists, the tuned baseline and controls
design          The kind of trainings, the seeds, the margin and the metric of a comparison
protocol        A confirmation on disk: its plan, fixed before the first trial, its study and its verdict
scheduler       Decide which trainings are still missing whenever a score arrives; read recorded verdicts
scores          The results of the trainings: each variant's score and cost at each seed
statistics      Differences over seeds: estimates, intervals, tests
evalues         Tests of a stream of changes: e-processes, online control of false discoveries, futility
ledger          `ledger.db`: the comparisons, heads and tests of a stream of changes
stream          A change of a ledger: its program, the seeds it needs, and its verdict from the scores so far
decision        Several finalists, interim analyses, power
rules           The rules of a verdict: a table of conditions, outcomes and words
causes          The causes of a verdict: a table of facts, words and next steps
judge           The verdict on the finalists, from the scores so far
verdict         The verdict and the comparisons, as values, in words and in `verdict.json`, and the result
"""

"""`automl report`: what a search found, as one page that opens offline, and each plot as SVG and PNG.

run_report      Draws all figures and writes the page, one HTML file, and the files
figure          Plots: Vega-Lite charts for the page and files (figures.js, figures.css), a sentence, numbers
style           The look of the figures: palette, shapes, axes, tooltips, and the rows of trials
read            Reads what a report is made of: the search's folder, its study, its confirmations, answers
network         The network with the modules of the winner or the best trial
forest          The verdict as a forest plot
grid_table      A search over a grid as a table
per_class       Recall, precision and F1 of each class, and the most confused pairs
module_effects  What parts of placements add, with intervals, and whether scores can rank them
attention       What the strongest module looks at, in six inputs of the test split
costs           The metric over time, latency, parameters and MACs, with Pareto fronts
curves          Learning curves with the rungs, and curves of training loss and accuracy
listing         All trials as a table, failed trials by reason, and how to repeat the search
"""

"""`automl report`: what a search found, as one page that opens offline, and each plot as SVG and PNG.

run_report      Draws all figures and writes the page, one HTML file, and the files
figure          Plots: Vega-Lite charts for the page and files (figures.js, figures.css), a sentence, numbers
style           The look of the figures: palette, shapes, axes, tooltips, and the rows of trials
read            Reads what a report is made of: the search's folder, its study, its confirmations, answers
forest          The verdict as a forest plot, and the network with the modules of the winner or the best trial
grid_table      A search over a grid as a table
per_class       Recall, precision and F1 of each class, and the most confused pairs
module_effects  What parts of placements add, with intervals, and whether scores can rank them
attention       What the strongest module looks at, in six inputs of the test split
curves          Learning curves with the rungs, and the metric over time, latency, parameters and MACs
listing         All trials as a table, failed trials by reason, and how to repeat the search
"""

"""The command line: options and output of each command, and the small commands themselves.

main              The commands, and the handling of errors
command           Options of every command: `--config`, `--save-config`, `--json`, `--help-all`
options           Options of several commands
search_command    `automl search`, `automl studies` and `automl study`, with their final output
judge_commands    `automl confirm`, `referee`, `ledger`, `compare` and `solve`
train_command     `automl train`
export_command    `automl export`, `automl predict` and `automl maps`: pictures of what modules attend to
folder_commands   `automl status`, `searches`, `remove`, `sync` and `report`
space_commands    `automl data`, `spaces`, `attentions`, `sites`, `cost` and `check-attention`
data              Overview of a dataset, and the sheet of sample images
attentions        Tables of the attention types, of their costs at sites, and of checks of their contract
cost              Costs of a placement in a model
preview           Estimate the cost and power of a search: `automl search --dry-run`
remove            Delete a search with its checkpoints
status            State of a search, running or not, and the list of all searches
mcp_server        Server of `automl mcp`, with a process for each call
tools             `automl mcp` and `automl skill`, and tools with the options of the commands
attended          Run a command that ends with its parent
sync              Write the missing runs of a search to MLflow
"""

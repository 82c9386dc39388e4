"""The command line: options and output of each command.

main              The commands, and the handling of errors
command           Options of several commands, such as `--json`
search_command    `automl search`, `automl studies` and `automl study`, with their final output
judge_commands    `automl confirm`, `referee`, `ledger`, `compare`, `solve`, `mcp` and `skill`
train_command     `automl train`
export_command    `automl export` and `automl predict`
folder_commands   `automl status`, `searches`, `remove`, `sync` and `report`
space_commands    `automl data`, `spaces`, `attentions`, `sites`, `cost` and `check-attention`
tables            Tables of the attention types, of costs at sites, and of checks of their contract
mcp_server        Server of `automl mcp`, with a process for each call, and its tools
attended          Run a command that ends with its parent
"""

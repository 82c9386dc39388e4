"""The command line: options and output of each command, and the small commands themselves.

main             The commands, and the handling of errors
options          Options of several commands
command          Options that every command has
config_file      `--config` and `--save-config`: the options of a command in a YAML file
json_output      `--json`: JSON on standard output
search_command   `automl search`
search_words     Final output of `automl search`
confirm_command  `automl confirm` and `automl compare`
referee_command  `automl referee`: compare commands
report_command   `automl report`
solve_command    `automl solve`: the best placement under limits
train_command    `automl train`
export_command   `automl export` and `automl predict`
maps_command     `automl maps`: pictures of what modules attend to
folder_commands  `automl status`, `searches`, `remove` and `sync`
space_commands   `automl data`, `spaces`, `attentions`, `sites`, `cost` and `check-attention`
study_commands   `automl studies` and `automl study`
data             Overview of a dataset, and the sheet of sample images
attentions       List the attention types
check_attention  Check an attention type at every site of a model
cost             Costs of a placement in a model
preview          Estimate the cost and power of a search: `automl search --dry-run`
remove           Delete a search with its checkpoints
searches         List the searches of a storage
sites            List the sites of a backbone with the cost of each attention type
status           State of a search, running or not
sync             Write the missing runs of a search to MLflow
"""

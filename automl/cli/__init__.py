"""The command line: each command's options and what it prints, and the small commands themselves.

main             The commands, and how errors are reported
options          The options that several commands share
command          What every command has beside its own options
config_file      `--config` and `--save-config`: a command's options in YAML
json_output      `--json`: one object alone on standard output
search_command   `automl search`
search_words     What `automl search` prints when it is over
confirm_command  `automl confirm` and `automl compare`
report_command   `automl report`
train_command    `automl train`
export_command   `automl export` and `automl predict`
folder_commands  `automl status`, `searches`, `remove` and `sync`
space_commands   `automl data`, `spaces`, `sites` and `cost`
study_commands   `automl studies` and `automl study`
data             What `automl data` says of a folder of images, and the sheet that it writes
cost             What a placement costs in a model
preview          Estimates the cost and power of a search before it is started: `automl search --dry-run`
remove           Deletes a search with its checkpoints
searches         Lists the searches of a storage
sites            Lists the sites of a backbone with the cost of each attention there
status           The state of a search, read from its folder while it runs or after its end
sync             Writes to MLflow what it lacks of a search's study
"""

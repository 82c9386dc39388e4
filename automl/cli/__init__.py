"""The command line: each command's options and what it prints, and the small commands themselves.

main             The commands, and what becomes of an error
options          The options that several commands share
search_command   `automl search`
confirm_command  `automl confirm` and `automl compare`
report_command   `automl report`
train_command    `automl train`
export_command   `automl export` and `automl predict`
folder_commands  `automl status`, `searches`, `remove` and `sync`
space_commands   `automl spaces` and `automl sites`
preview          What a search would cost and could find, before it is started: `automl search --dry-run`
remove           Deleting a search with all that it keeps
searches         The searches of a storage, each in a line
sites            The sites of a backbone and what each attention would cost there
status           How a search stands, read from its folder: beside the process that runs it, or after its end
sync             Bringing MLflow to where a search's study stands
"""

"""The folder of this file is on the path, so tests of a task find `task_contract`."""

"""Search where attention goes in a neural network, and test whether it helps.

    import automl

    result = automl.run_search(space="digits", trials=8, name="digits")
    result.confirm()
    result.export()
    result.predict(["seven.png"])
    automl.load("digits").resume(trials="+8")

Run:      run_search, run_confirm, run_report, run_export, run_predict, run_code_search,
          run_solve, run_train, run_study, run_referee, run_ledger
Manage:   load, Search, list_searches, read_status, run_sync
Before:   preview_search, describe_data, measure_cost, check_attention
Results:  ConfirmResult, Verdict, LedgerResult, ReportResult, ExportResult,
          Predictions, Prediction, CodeSearch, TrainResult, StudyResult
Spaces:   Settings, Space, Trial, TrialConfig
Models:   Attention, Choices, Spec, Site, sites, insert, attention_maps, AttentionMap
Tasks:    Task, TaskSpec, Metric, register_task
Events:   Callback, SearchRecord, TrialRecord
Errors:   InputError

`help(automl.run_search)` explains one of them. `make docs` writes a page about all of them.
"""

import os
import sys

# `python -m automl` puts the current folder first on the path, where a file of the user may have the name of
# any module. Nothing else may be imported before this. A script that imports this package keeps its path.
_program = sys.orig_argv[-len(sys.argv)].removeprefix("-m").partition(".")[0] if sys.argv[0] == "-m" else ""
if _program == __name__ and not sys.flags.safe_path:
    _folder = sys.path.pop(0)
    if _folder in (*sys.path, os.path.dirname(__path__[0])):  # PYTHONPATH has it, or it has this package
        sys.path[:] = [*(each for each in sys.path if each != _folder), _folder]

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Imported, MLflow sends usage statistics, and onnxruntime records them in the home folder.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from attention import Attention, AttentionMap, Choices, Spec, attention_maps
    from automl.base.errors import InputError
    from automl.config.settings import Settings
    from automl.costs.profile import measure_cost
    from automl.export.check_attention import check_attention
    from automl.export.export_result import ExportResult
    from automl.export.predict import Prediction, Predictions, run_predict
    from automl.export.run_export import run_export
    from automl.judge.run_confirm import run_confirm
    from automl.judge.verdict import ConfirmResult, Verdict
    from automl.report.run_report import ReportResult, run_report
    from automl.search.driver import run_sync
    from automl.search.preview import preview_search
    from automl.search.run_search import Search, load, run_search
    from automl.search.solve import run_solve
    from automl.search.status import list_searches, read_status
    from automl.search.studies import StudyResult, run_study
    from automl.task import Task, register_task
    from automl.task.opening import describe_data
    from automl.tasks.code_retrieval.search import CodeSearch, run_code_search
    from automl.tasks.command.referee import run_referee
    from automl.tasks.command.run_ledger import LedgerResult, run_ledger
    from automl.tasks.function.trial import Trial
    from automl.trials.train import TrainResult, run_train
    from backbones import Site, insert, sites
    from search.config import TaskSpec, TrialConfig
    from search.metric import Metric
    from search.record import Callback, SearchRecord, TrialRecord
    from search.space import Space

__all__ = [
    "Attention", "AttentionMap", "Callback", "Choices", "CodeSearch", "ConfirmResult",
    "ExportResult", "InputError", "LedgerResult", "Metric", "Prediction", "Predictions", "ReportResult",
    "Search", "SearchRecord", "Settings", "Site", "Space", "Spec", "StudyResult", "Task", "TaskSpec",
    "TrainResult", "Trial", "TrialConfig", "TrialRecord", "Verdict", "attention_maps", "check_attention",
    "describe_data", "insert", "list_searches", "load", "measure_cost", "preview_search", "read_status",
    "register_task", "run_code_search", "run_confirm", "run_export",
    "run_ledger", "run_predict", "run_referee", "run_report", "run_search",
    "run_solve", "run_study", "run_sync", "run_train", "sites",
]  # fmt: skip


def __dir__() -> list[str]:
    return list(__all__)


def _check_packages() -> None:
    """Raise ImportError if another package hides one of this project."""
    # Their names are common, so other distributions and scripts may use them.
    here = Path(__file__).resolve().parents[1]
    for name in ("attention", "backbones", "cluster", "search"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise ImportError(f"attention-automl is incomplete: its package {name!r} is missing in {here}")
        if Path(spec.origin).resolve().parents[1] != here:
            raise ImportError(
                f"automl needs its own package {name!r} in {here}, but Python finds {spec.origin} first. "
                f"Rename or move that file, or uninstall the package that it is of (pip uninstall)"
            )


_check_packages()

from automl.base.lazy import lazily  # it may be another package before the check

_load = lazily(__name__)


def __getattr__(name: str) -> Any:
    value = _load(name)
    if name.startswith("run_"):
        value = globals()[name] = import_module("automl.base.loading").outside_imports(value)
    return value

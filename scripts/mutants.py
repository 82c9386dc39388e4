"""Apply small faults to a copy of the project, one at a time, and run the tests nearest to each.

Usage:

    python scripts/mutants.py                    all faults
    python scripts/mutants.py holm seed-model    some of them
    python scripts/mutants.py --all              with the slow tests, as AUTOML_LONG=1

A fault that no test finds is named, and the exit status is 1. A parent process imports the libraries once and
forks, so most faults take a few seconds. Before tests are deleted, this shows what they find: `by` counts the
test functions that failed, and of a fault that only one finds, that one must stay.
"""

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_FAILURES = 5  # after which the tests of a fault are ended
LIBRARIES = [
    "torch",
    "torchvision",
    "timm",
    "ray",
    "ray.tune",
    "mlflow",
    "optuna",
    "onnxruntime",
    "onnx",
    "onnxscript",
    "scipy.linalg",
    "pandas",
    "pyarrow.fs",
    "hypothesis",
    "altair",
    "typer",
    "rich",
    "torch._dynamo",
    "torch.export",
    "torch.onnx",
    "mlflow.pyfunc",
    "statsmodels.api",
]


@dataclass(frozen=True)
class Mutant:
    """A fault.

    Attributes:
        name: Its name.
        file: The file that has it.
        text: The right text, which is once in the file.
        fault: The faulty text.
        tests: The nearest tests, as arguments of pytest.
    """

    name: str
    file: str
    text: str
    fault: str
    tests: str


JUDGE = "tests/automl/judge"
MUTANTS = [
    # Signs and levels of the judge
    Mutant(
        "verdict-sign",
        "automl/judge/rules.py",
        "rejected[i] and differences[i].mean > 0",
        "rejected[i] and differences[i].mean < 0",
        f"{JUDGE}/test_rules.py {JUDGE}/test_verdict.py",
    ),
    Mutant(
        "verdict-behind",
        "automl/judge/rules.py",
        "self.differences[best].mean <= 0 and",
        "self.differences[best].mean >= 0 and",
        f"{JUDGE}/test_rules.py {JUDGE}/test_verdict.py",
    ),
    Mutant(
        "verdict-opponent-ahead",
        "automl/judge/rules.py",
        "other.p if other.mean > 0 else 1.0",
        "other.p",
        f"{JUDGE}/test_rules.py {JUDGE}/test_verdict.py",
    ),
    Mutant(
        "holm",
        "automl/judge/decision.py",
        "level(ALPHA / (family - rank)) * (1 + 1e-9)",
        "level(ALPHA / max(1, family - rank - 1)) * (1 + 1e-9)",
        f"{JUDGE}/test_statistics.py {JUDGE}/test_rules.py {JUDGE}/test_verdict.py",
    ),
    Mutant(
        "spent-alpha",
        "automl/judge/decision.py",
        "4 * special.ndtr(special.ndtri(alpha / 4)",
        "4 * special.ndtr(special.ndtri(alpha / 2)",
        f"{JUDGE}/test_statistics.py",
    ),
    Mutant(
        "margin-sign",
        "automl/judge/statistics.py",
        "(abs(mean) - margin) / sd",
        "(abs(mean) + margin) / sd",
        f"{JUDGE}/test_statistics.py {JUDGE}/test_rules.py",
    ),
    Mutant(
        "e-lond-level",
        "automl/judge/evalues.py",
        "(np.asarray(discoveries) + 1))",
        "(np.asarray(discoveries) + 2))",
        f"{JUDGE}/test_evalues.py {JUDGE}/test_ledger.py",
    ),
    Mutant(
        "e-value-sign",
        "automl/judge/evalues.py",
        "np.tanh(STAKE * ratio)",
        "np.tanh(STAKE * abs(ratio))",
        f"{JUDGE}/test_evalues.py {JUDGE}/test_ledger.py",
    ),
    Mutant(
        "equal-time-of-verdict",
        "automl/judge/scores.py",
        "ours.high / theirs.low *",
        "ours.low / theirs.high *",
        f"{JUDGE}/test_confirm.py {JUDGE}/test_verdict.py {JUDGE}/test_variants.py",
    ),
    Mutant(
        "chance-one-sided",
        "automl/judge/statistics.py",
        "float(values.mean()) - chance > reach",
        "abs(float(values.mean()) - chance) > reach",
        f"{JUDGE}/test_statistics.py {JUDGE}/test_verdict.py",
    ),
    # Seeds and order
    Mutant(
        "seed-used-again",
        "automl/judge/trainings.py",
        "    following = (seed % SEEDS for seed in count(max(used) + 1))\n"
        "    return list(islice((seed for seed in following if seed not in used), number))",
        "    following = (seed % SEEDS for seed in count(max(used)))\n"
        "    return list(islice(following, number))",
        f"{JUDGE}/test_confirm.py",
    ),
    Mutant(
        "seed-of-model",
        "automl/task/base.py",
        "torch.manual_seed(self.config.seed)",
        "torch.manual_seed(0)",
        "tests/automl/data/test_data_dataset.py tests/automl/training tests/automl/tasks/test_tasks.py",
    ),
    Mutant(
        "seed-of-repetition",
        "search/search_scheduler.py",
        "seed=(config.seed + repetitions) % 2**32",
        "seed=config.seed % 2**32",
        "tests/search/test_search_scheduler.py tests/search/test_placement_sampler.py",
    ),
    Mutant(
        "order-of-first-epoch",
        "automl/training/loop.py",
        "islice(task.batches(state.epoch), state.steps, steps)",
        "islice(task.batches(0), state.steps, steps)",
        "tests/automl/training/test_loop.py",
    ),
    # Splits
    Mutant(
        "split-copies-in-groups",
        "automl/data/splits.py",
        "for numbers_of in (inputs, groups):",
        "for numbers_of in (groups,):",
        "tests/automl/data/test_groups.py tests/automl/data/test_data_splits.py",
    ),
    Mutant(
        "split-same-bits",
        "automl/data/splits.py",
        "TEST, VALIDATION, SUBSET = range(3)",
        "TEST, VALIDATION, SUBSET = 0, 1, 1",
        "tests/automl/data/test_data_splits.py tests/automl/data/test_groups.py",
    ),
    Mutant(
        "split-takes-all",
        "automl/data/splits.py",
        "_first_by_rank(labels, keys, fraction, purpose, spare=1)",
        "_first_by_rank(labels, keys, fraction, purpose)",
        "tests/automl/data/test_data_splits.py tests/automl/data/test_groups.py",
    ),
    Mutant(
        "window-scored-twice",
        "automl/tasks/language_modelling/data/windows.py",
        "scored = np.where(rows > 0, (rows - 1) * step + context, 0)",
        "scored = np.where(rows > 0, (rows - 1) * step + context - 1, 0)",
        "tests/automl/tasks/language_modelling/test_texts.py",
    ),
    # Attention
    Mutant(
        "causal-sliding",
        "attention/sliding.py",
        "visible = (j >= 0) & (j < end) & (i - j <= before) & (j - i <= after)",
        "visible = (j >= 0) & (j < end) & (i - j <= before) & (j - i <= after + 1)",
        "tests/attention/test_causal_attention.py tests/attention/test_attention_parity.py "
        "tests/attention/test_prefill_and_step.py",
    ),
    Mutant(
        "causal-multihead",
        "attention/multihead.py",
        "dtype=torch.bool, device=q.device).tril()",
        "dtype=torch.bool, device=q.device).tril(1)",
        "tests/attention/test_causal_attention.py tests/attention/test_attention_parity.py "
        "tests/attention/test_attention_padding.py",
    ),
    Mutant(
        "causal-sums",
        "attention/prefix_sums.py",
        "(q @ k.mT).tril() @ v",
        "(q @ k.mT).tril(1) @ v",
        "tests/attention/test_causal_attention.py tests/attention/test_attention_parity.py",
    ),
    Mutant(
        "causal-chunks",
        "attention/prefix_sums.py",
        ".cumsum(dim=-3), 1)",
        ".cumsum(dim=-3), 0)",
        "tests/attention/test_causal_attention.py tests/attention/test_attention_parity.py",
    ),
    Mutant(
        "causal-delta",
        "attention/gated_delta.py",
        "device=k.device).triu(1)",
        "device=k.device).triu(2)",
        "tests/attention/test_causal_attention.py tests/attention/test_attention_parity.py",
    ),
    Mutant(
        "causal-convolution",
        "attention/shortconv.py",
        "(0, 0, self.kernel - 1 - after, after)",
        "(0, 0, self.kernel - 2 - after, after + 1)",
        "tests/attention/test_causal_attention.py tests/attention/test_attention_parity.py",
    ),
    Mutant(
        "padding-in",
        "attention/gated.py",
        "            tokens = tokens.masked_fill(~mask.unsqueeze(2), 0)\n",
        "            pass\n",
        "tests/attention/test_attention_padding.py",
    ),
    Mutant(
        "padding-out",
        "attention/gated.py",
        "            update = update.masked_fill(~mask.unsqueeze(2), 0)\n",
        "            pass\n",
        "tests/attention/test_attention_padding.py",
    ),
    Mutant(
        "gate-open",
        "attention/gated.py",
        "nn.Parameter(torch.zeros(1))",
        "nn.Parameter(torch.full((1,), 0.01))",
        "tests/attention/test_attention_contract.py",
    ),
    Mutant(
        "window-decoding",
        "attention/shortconv.py",
        "(signal[:, x.shape[1] :],)",
        "(signal[:, x.shape[1] - 1 : -1],)",
        "tests/attention/test_prefill_and_step.py",
    ),
    # Costs and equal time
    Mutant(
        "unit-of-latency",
        "automl/costs/profile.py",
        "return [1e3 * latency for latency in",
        "return [latency for latency in",
        "tests/automl/costs/test_profile.py tests/automl/costs/test_forecast.py",
    ),
    Mutant(
        "unit-of-macs",
        "backbones/cost.py",
        "return int(counter.get_total_flops()) // 2 + correction",
        "return int(counter.get_total_flops()) + correction",
        "tests/backbones/test_macs.py tests/attention/test_attention_cost.py",
    ),
    Mutant(
        "unit-of-exported-speed",
        "automl/export/checks.py",
        "latency=1e3 * _median_seconds",
        "latency=_median_seconds",
        "tests/automl/export/test_checks.py",
    ),
    Mutant(
        "memory-without-gradients",
        "automl/costs/profile.py",
        "return 2 * weights + average",
        "return weights + average",
        "tests/automl/costs/test_profile.py tests/automl/costs/test_forecast.py",
    ),
    Mutant(
        "equal-time",
        "automl/training/loop.py",
        "training.epochs / time_ratio",
        "training.epochs * time_ratio",
        "tests/automl/training/test_loop.py",
    ),
    Mutant(
        "bits-per-byte",
        "automl/tasks/language_modelling/score.py",
        'metrics["loss"] / (log(2) * self.bytes_per_token)',
        'metrics["loss"] * log(2) / self.bytes_per_token',
        "tests/automl/tasks/language_modelling/test_language_modelling.py "
        "tests/automl/tasks/language_modelling/test_texts.py",
    ),
    Mutant(
        "rank-of-ties",
        "automl/tasks/code_retrieval/score.py",
        "(~(scores < scores.gather(1, answers[:, None])))",
        "(1 + (scores > scores.gather(1, answers[:, None])).long())",
        "tests/automl/tasks/code_retrieval/test_retrieval_metrics.py",
    ),
    # Optimiser and schedules
    Mutant(
        "decay-of-gates",
        "automl/training/optimiser.py",
        "(p.ndim > 1 and name not in excluded)",
        "(p.ndim > 0 and name not in excluded)",
        "tests/automl/training/test_optimiser.py",
    ),
    Mutant(
        "schedule-flat",
        "automl/training/optimiser.py",
        "max(0.0, progress - 0.72) / 0.28",
        "max(0.0, progress - 0.72) / 0.72",
        "tests/automl/training/test_optimiser.py",
    ),
    # What is tried and what ends early
    Mutant(
        "halving-keeps-more",
        "search/halving.py",
        "continues = better < ceil(",
        "continues = better <= ceil(",
        "tests/search/test_halving.py tests/search/test_search_scheduler.py",
    ),
    Mutant(
        "metric-sign",
        "search/trial_scheduler.py",
        "return self.metric.sign * trial.value(self.metric.name)",
        "return trial.value(self.metric.name)",
        "tests/search/test_search_scheduler.py tests/automl/callbacks/test_retention.py",
    ),
    Mutant(
        "guessing-wins",
        "search/trial_scheduler.py",
        "return not plan.guesses(record), plan.signed_value(record)",
        "return True, plan.signed_value(record)",
        "tests/search/test_search_scheduler.py tests/search/test_fixed_scheduler.py",
    ),
    Mutant(
        "baseline-deleted",
        "automl/callbacks/retention.py",
        "return [*rank_trials(done, self.plan)[: self.keep], *([baseline] if baseline else [])]",
        "return rank_trials(done, self.plan)[: self.keep]",
        "tests/automl/callbacks/test_retention.py",
    ),
    # Escapes
    Mutant(
        "escape-card",
        "automl/export/export_result.py",
        "Markup(markdown(value)),",
        "Markup(str(value)),",
        "tests/automl/export/test_model_card.py",
    ),
    Mutant(
        "escape-table",
        "automl/base/escape.py",
        r'r"[\\`*\[\]|~$#]|',
        r'r"[\\`*\[\]~$#]|',
        "tests/automl/base/test_escape.py",
    ),
    Mutant(
        "escape-report",
        "automl/report/run_report.py",
        "autoescape=True,",
        "autoescape=False,",
        "tests/automl/report/test_report_page.py",
    ),
    Mutant(
        "escape-caption",
        "automl/report/figure.py",
        "{escape(printable(caption))}",
        "{printable(caption)}",
        "tests/automl/report",
    ),
    Mutant(
        "escape-token",
        "automl/base/escape.py",
        '_TOKEN.sub("***", _HEADER',
        '_TOKEN.sub(r"\\g<0>", _HEADER',
        "tests/automl/base/test_escape.py",
    ),
    Mutant(
        "escape-filter",
        "automl/tracking/client.py",
        'if "\'" in value else',
        "if '\"' in value else",
        "tests/automl/tracking/test_odd_names.py tests/automl/tracking/test_tracking.py",
    ),
    Mutant(
        "archive-leads-outside",
        "automl/data/archive.py",
        ' or ".." in path.parts:',
        ":",
        "tests/automl/data/test_data_download.py",
    ),
    # Locks and trust
    Mutant(
        "lock-of-cache",
        "automl/storage/cache_folder.py",
        "        with _locked(target):\n",
        "        if True:\n",
        "tests/automl/data/test_data_cache.py tests/automl/data/test_data_shared.py",
    ),
    Mutant(
        "lock-of-ledger",
        "automl/judge/ledger.py",
        'return self._open("BEGIN IMMEDIATE")',
        'return self._open("BEGIN DEFERRED")',
        f"{JUDGE}/test_ledger.py",
    ),
    Mutant(
        "lock-of-search",
        "automl/storage/folder.py",
        "lock.acquire(timeout=1)  # `is_running`",
        "pass  # `is_running`",
        "tests/automl/storage/test_folder.py",
    ),
    Mutant(
        "trust-of-any",
        "automl/storage/user_code.py",
        "return bool(names) and all(mark is not None",
        "return bool(names) and any(mark is not None",
        "tests/automl/storage/test_foreign_files.py",
    ),
    # Resume
    Mutant(
        "resume-optimiser",
        "automl/training/checkpoint.py",
        'state.optimizer.load_state_dict(content["optimizer"])',
        "pass",
        "tests/automl/training/test_checkpoint.py",
    ),
    Mutant(
        "resume-generators",
        "automl/training/checkpoint.py",
        'restore_generator_states(content["generators"])',
        "pass",
        "tests/automl/training/test_checkpoint.py",
    ),
    Mutant(
        "resume-half-line",
        "search/optuna_internals.py",
        "os.truncate(self.path, before)",
        "pass",
        "tests/search/test_journal.py",
    ),
    Mutant(
        "resume-marked",
        "search/trial_scheduler.py",
        "if record.state is State.RUNNING and PRUNED in trial.user_attrs:",
        "if False:",
        "tests/search/test_search_scheduler.py",
    ),
    Mutant(
        "resume-failed",
        "search/fixed_scheduler.py",
        "self._failed = errors if retry else set()",
        "self._failed = set()",
        "tests/search/test_fixed_scheduler.py",
    ),
    Mutant(
        "averaged-weights",
        "automl/training/checkpoint.py",
        'content["average"] or content["model"]',
        'content["model"]',
        "tests/automl/training/test_checkpoint.py",
    ),
    # Takes of weights
    Mutant(
        "take-of-heads",
        "backbones/take_over.py",
        "rows.unflatten(0, (-1, width)).repeat_interleave(count, dim=0)",
        "torch.cat([rows.unflatten(0, (-1, width))] * count)",
        "tests/backbones/test_take_over.py",
    ),
    Mutant(
        "take-of-scale",
        "backbones/take_over.py",
        "attended.scale(scale * width**0.5)",
        "attended.scale(scale)",
        "tests/backbones/test_take_over.py tests/automl/tasks/language_modelling/test_pretrained_decoders.py",
    ),
    Mutant(
        "take-of-convolution",
        "backbones/take_over.py",
        'sources = (k, q, v) if "conv" in layers else (q, k, v)',
        "sources = (q, k, v)",
        "tests/backbones/test_take_over.py",
    ),
    # Exports and the registry
    Mutant(
        "export-normalisation",
        "automl/tasks/image_classification/task.py",
        "self.model(normalise(images, self.normalisation))",
        "self.model(normalise(images))",
        "tests/automl/tasks/test_task_contract.py tests/automl/export/test_onnx_program.py "
        "tests/automl/export/test_predict.py",
    ),
    Mutant(
        "export-parity",
        "automl/export/checks.py",
        "difference = task.compare(expected[graph], run())",
        "difference = task.compare(run(), run())",
        "tests/automl/export/test_export.py",
    ),
    Mutant(
        "export-four-dimensions",
        "automl/export/formats.py",
        ".reshape(-1, 1, *attn_mask.shape[-2:])",
        ".reshape(-1, 1, *attn_mask.shape[-2:])[:1]",
        "tests/automl/export/test_onnx_program.py tests/automl/export/test_export.py",
    ),
]


def copy_project(folder: Path) -> None:
    """Copy the files that git knows to `folder`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def run_tests(folder: Path, tests: str, output: Path) -> None:
    """Run tests in this process, which ends, and write what pytest prints to `output`."""
    import pytest

    os.chdir(folder)
    sys.path[:] = [str(folder), *(entry for entry in sys.path if Path(entry or ".").resolve() != ROOT)]
    # An editable installation finds the packages of the working tree otherwise.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in str(finder).lower()]
    os.environ["PYTHONPATH"] = str(folder)
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        options = ["-q", "-rfE", "--tb=no", f"--maxfail={MOST_FAILURES}", "-p", "no:cacheprovider"]
        code = pytest.main([*options, *tests.split()])
    output.write_text(f"{int(code)}\n{text.getvalue()}")
    os._exit(0)


def try_mutant(mutant: Mutant, folder: Path) -> tuple[str, set[str], float]:
    """Return whether a fault is `caught`, the test functions that fail, and the processor seconds."""
    file = folder / mutant.file
    right = file.read_text()
    if right.count(mutant.text) != 1:
        return f"its text is {right.count(mutant.text)} times in the file", set(), 0.0
    output, before = folder / "mutant.txt", sum(os.times()[2:4])
    file.write_text(right.replace(mutant.text, mutant.fault))
    try:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                run_tests(folder, mutant.tests, output)
            finally:
                os._exit(1)
        os.waitpid(child, 0)
    finally:
        file.write_text(right)
    seconds = sum(os.times()[2:4]) - before
    if not output.exists():
        return "its tests died", set(), seconds
    code, _, text = output.read_text().partition("\n")
    output.unlink()
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+?)(?:\[| |$)", text, re.M))
    if code == "1" and failed:
        return "caught", failed, seconds
    return "NOT CAUGHT" if code == "0" else f"pytest ended with {code}: {text[-300:]}", failed, seconds


def main() -> int:
    """Print a table of the faults. Return 1 if one is not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="Faults to try. Default: all.")
    parser.add_argument("--all", action="store_true", help="Run the slow tests, too.")
    asked = parser.parse_args()
    unknown = set(asked.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no fault is called {', '.join(sorted(unknown))}; see MUTANTS in this file")
    if asked.all:
        os.environ["AUTOML_LONG"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for library in LIBRARIES:
        __import__(library)
    missed = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch).resolve()
        copy_project(folder)
        print("| fault | result | by | only by | CPU s |\n|---|---|---|---|---|", flush=True)
        for mutant in MUTANTS:
            if asked.names and mutant.name not in asked.names:
                continue
            result, failed, seconds = try_mutant(mutant, folder)
            only = next(iter(failed)) if len(failed) == 1 else ""
            print(f"| {mutant.name} | {result} | {len(failed)} | {only} | {seconds:.0f} |", flush=True)
            missed += [mutant.name] * (result != "caught")
    print(f"{len(missed)} not caught: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

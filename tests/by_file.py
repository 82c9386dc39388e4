"""The order in which `make test` runs the files, and which process runs which."""

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Files that share the trained and the exported model of tests/automl/conftest.py, which take long to make, so
# one process of `make test` runs them all.
SHARED = (
    "test_code_search.py",
    "test_export.py",
    "test_model_card.py",
    "test_predict.py",
    "test_registry.py",
    "test_score_card.py",
)
# Other files of half a minute and more. They come first, so that at the end neither process waits long for
# the other.
LONGEST = (
    "test_planted_truth.py",
    "test_own_attention.py",
    "test_ray_job.py",
    "test_any_model.py",
    "test_detection_export.py",
    "test_tuner.py",
)


def scope_of(nodeid: str) -> str:
    file = nodeid.split("::")[0]
    return "shared" if file.rpartition("/")[2] in SHARED else file


class ByFile(LoadScopeScheduling):
    """Scheduler that runs the tests of a file in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give out again what a dead process has not run. Return the test in which it died.

        pytest-xdist 3.8 gives out all of its files, runs that test again, and waits for files that have
        ended (its issues 1323 and 1378).
        """
        left = [(scope, tests) for scope, tests in self.assigned_work.pop(node).items()]
        left = [(scope, tests) for scope, tests in left if not all(tests.values())]
        if not left:
            return None
        _, first = left[0]
        died_in = next(test for test, done in first.items() if not done)
        first[died_in] = True
        self.workqueue.update((scope, tests) for scope, tests in left if not all(tests.values()))
        for other in self.assigned_work:
            self._reschedule(other)
        return died_in

    def _reschedule(self, node: WorkerController) -> None:
        super()._reschedule(node)
        # A process begins a test once it has another, or knows that there is none (issue 1327).
        if self._pending_of(self.assigned_work.get(node, {})) == 1:
            super()._reschedule(node)

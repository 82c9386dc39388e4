"""A confirmation's run in MLflow."""

from functools import partial

from automl.confirm.protocol import Confirmation
from automl.storage.folder import SearchMetadata
from automl.storage.storage import Storage
from automl.tracking.run_spec import RunSpec, below, source
from automl.tracking.tags import CONFIRMS
from search.serialise import to_json


def confirmation_run_spec(location: Storage, metadata: SearchMetadata, confirmation: Confirmation) -> RunSpec:
    """Return the MLflow run of a search's confirmation, below the run of the search."""
    number = confirmation.number
    return RunSpec(
        name=f"{metadata.name} confirm" + (f" {number}" if number > 1 else ""),
        tags={CONFIRMS: metadata.name},
        source=source(confirmation.provenance),
        data=metadata.data,
        splits=("training", "validation", "testing"),
        identity=f"{metadata.identity}-confirm-{number}",
        above=metadata.identity,
        experiment=metadata.settings.title,
        checkpoint=partial(below, location),
        primary=metadata.plan.metric,
        params={**vars(confirmation.options), "first_seed": confirmation.seeds[0]},
        settings=to_json(confirmation),
    )

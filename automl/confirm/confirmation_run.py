"""A confirmation's run in MLflow."""

from functools import partial

from automl.base.addresses import redact_all
from automl.base.serialise import to_json
from automl.confirm.protocol import Confirmation
from automl.storage.folder import SearchMetadata
from automl.storage.storage import Storage
from automl.tracking.names import CONFIRMS
from automl.tracking.run_spec import RunSpec, below, source


def confirmation_run_spec(location: Storage, metadata: SearchMetadata, confirmation: Confirmation) -> RunSpec:
    """Return the MLflow run of a search's confirmation, below the run of the search.

    A referee has no search. Its first confirmation is the run of the whole folder.
    """
    number = confirmation.number
    alone = metadata.settings.is_referee and number == 1
    return RunSpec(
        name=metadata.name if alone else f"{metadata.name} confirm" + (f" {number}" if number > 1 else ""),
        tags={CONFIRMS: metadata.name},
        source=source(confirmation.provenance, metadata.scale),
        data=metadata.data,
        splits=() if metadata.settings.is_referee else ("training", "validation", "testing"),
        identity=metadata.identity if alone else f"{metadata.identity}-confirm-{number}",
        above="" if alone else metadata.identity,
        experiment=metadata.settings.title,
        checkpoint=partial(below, location),
        primary=metadata.plan.metric,
        params={**vars(confirmation.options), "first_seed": confirmation.seeds[0]},
        settings=redact_all(to_json(confirmation)),
    )

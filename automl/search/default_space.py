"""The space of a search that is given data and nothing else."""

from automl.data.sequences import are_sequences


def space_for(data: str) -> str:
    """The built-in space for what is at the path `data`: `sensors` for sequences, else `folder`.

    Raises InputError for an archive that cannot be extracted.
    """
    return "sensors" if are_sequences(data) else "folder"

"""Text for language models, and sequences of associative recall.

windows    Windows of tokens with the positions that count, of either source, and the overview of texts
documents  Finds files of text and their splits, and reads documents, lines and pieces into an Arrow file
tokens     Bytes or sub-words, and the tokens of all documents, split by split, in an Arrow file
"""

from automl.tasks.language_modelling.data.documents import is_text
from automl.tasks.language_modelling.data.windows import Windows, open_windows, shared_name

__all__ = ["Windows", "is_text", "open_windows", "shared_name"]

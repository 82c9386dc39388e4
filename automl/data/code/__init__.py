"""Functions of source code and what they are searched by: what is read, cleaned, split and made into tokens.

function         A function: where it stands, its code without docstring and comments, its docstring
python           The functions of a Python file
other_languages  The functions of Go, Java, JavaScript, PHP and Ruby files, by tree-sitter
comments         Docstrings that are comments right before a function
source_folder    The functions of a folder of source files, and which files are left out
cosqa            The JSON files of CoSQA: functions, and real queries with known answers
codesearchnet    The files of CodeSearchNet, in any of its languages
corpus           All functions of a source with their splits and the real queries
code_splits      Which split a function is in: near duplicates are together
duplicates       A key that functions share which are the same up to names
leaks            Docstrings that are repeated in the code that is searched
code_cache       A corpus, as an Arrow file that every process maps into memory
tokenizer        Sub-tokens by byte-pair encoding
tokens           All texts of a corpus as sub-tokens, in an Arrow file
ragged           Rows of different lengths, and batches of them with padding
code_dataset     A corpus as the training loop reads it; splits, subsets and manifests
code_overview    What `automl data` says of a folder of code
"""

from automl.data.code.code_cache import shared_name
from automl.data.code.code_dataset import CodeTexts, open_texts
from automl.data.code.corpus import Corpus, is_code, open_corpus

__all__ = ["CodeTexts", "Corpus", "is_code", "open_corpus", "open_texts", "shared_name"]

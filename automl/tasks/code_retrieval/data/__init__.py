"""Functions of source code and their queries: reading, cleaning, splits and tokens.

function         A function: its location, its code without docstring and comments, its docstring
python           Parses the functions of a Python file
other_languages  Parses the functions of Go, Java, JavaScript, PHP and Ruby files with tree-sitter
comments         Docstrings that are comments before a function
source_folder    Reads the functions of a folder of source files
cosqa            The JSON files of CoSQA: functions, and real queries with known answers
codesearchnet    The files of CodeSearchNet, in any of its languages
corpus           All functions of a source with their splits and the real queries
splits           Assigns functions to splits, near duplicates together
duplicates       A key shared by functions that differ only in names
leaks            Finds docstrings that are repeated in the searched code
cache            A corpus in a memory-mapped Arrow file
tokenizer        Sub-tokens by byte-pair encoding
tokens           All texts of a corpus as sub-tokens, in an Arrow file
ragged           Rows of different lengths, and padded batches of them
dataset          A corpus for the training loop; splits, subsets and manifests
overview         The summary that `automl data` prints of a folder of code
"""

from automl.tasks.code_retrieval.data.cache import shared_name
from automl.tasks.code_retrieval.data.corpus import Corpus, is_code, open_corpus
from automl.tasks.code_retrieval.data.dataset import CodeTexts, open_texts

__all__ = ["CodeTexts", "Corpus", "is_code", "open_corpus", "open_texts", "shared_name"]

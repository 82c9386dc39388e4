"""Functions of source code and what they are searched by: what is read, cleaned, split and made into tokens.

function    A function: where it stands, its code without docstring and comments, its docstring
python      The functions of a Python file
folder      The functions of a folder of source files, and which files are left out
cosqa       The JSON files of CoSQA: functions, and real queries with known answers
corpus      All functions of a source with their splits and the real queries
splits      Which split a function is in: near duplicates are together
duplicates  A key that functions share which are the same up to names
leaks       Docstrings that are repeated in the code that is searched
tokenizer   Sub-tokens by byte-pair encoding
overview    What `automl data` says of a folder of code
"""

from automl.data.code.corpus import Corpus, is_code, open_corpus

__all__ = ["Corpus", "is_code", "open_corpus"]

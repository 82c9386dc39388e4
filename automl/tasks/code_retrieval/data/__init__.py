"""Functions of source code and their queries: reading, cleaning, splits and tokens.

python           A function, with its code and docstring; parses those of a Python file
source_folder    Reads the functions of a folder of source files
published        The published datasets: their addresses, and the files of CodeSearchNet and CoSQA
corpus           All functions of a source with their splits and the real queries, and their summary
tokenizer        Sub-tokens by byte-pair encoding, and padded batches of them
dataset          A corpus for the training loop, in Arrow files; splits, subsets and manifests
"""

from automl.tasks.code_retrieval.data.corpus import Corpus, is_code, open_corpus
from automl.tasks.code_retrieval.data.dataset import CodeTexts, open_texts, shared_name

__all__ = ["CodeTexts", "Corpus", "is_code", "open_corpus", "open_texts", "shared_name"]

"""Published datasets of code."""

from collections.abc import Sequence

from automl.data.download import PublishedDataset, Remote

COCLR = "https://raw.githubusercontent.com/Jun-jie-Huang/CoCLR/main/data/search"
CODE = "https://huggingface.co/datasets/code-search-net/code_search_net/resolve/main/data"
LANGUAGES = {  # languages of CodeSearchNet and bytes of their archives
    "python": 940_909_997,
    "java": 1_060_569_153,
    "javascript": 1_664_713_350,
    "php": 851_894_048,
    "go": 487_525_935,
    "ruby": 111_758_028,
}

DATASETS: Sequence[PublishedDataset] = (
    *(
        PublishedDataset(
            name=f"codesearchnet-{language}",
            about=f"CodeSearchNet, functions in {language}",
            files=[Remote(address=f"{CODE}/{language}.zip", size=size)],
            key=f"codesearchnet-{language}",
            inside="**/final/jsonl",
            space="codesearch",
            license="of each repository",
            source="huggingface.co/datasets/code-search-net/code_search_net",
        )
        for language, size in LANGUAGES.items()
    ),
    PublishedDataset(
        name="cosqa",
        about="CoSQA: real queries for functions in Python",
        files=[
            Remote(address=f"{COCLR}/{file}")
            for file in (
                "code_idx_map.txt",
                "cosqa-retrieval-dev-500.json",
                "cosqa-retrieval-test-500.json",
            )
        ],
        key="cosqa",
        space="codesearch",
        license="C-UDA 1.0",
        source="github.com/Jun-jie-Huang/CoCLR",
    ),
)

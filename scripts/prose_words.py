"""Words that `prose.py` rejects, with what to write instead."""

# First words of a docstring. They begin a clause, not a sentence that says what the function does.
DOCSTRING_STARTS = (
    "Of", "What", "Whatever", "Whether", "The same", "That", "How", "Who", "Whoever", "Whom", "Whose",
    "Where", "Wherever", "Which", "Why", "As", "None",
)  # fmt: skip

# The same of a test's name after `test_`.
TEST_STARTS = ("of", "what", "whatever", "whether", "that", "how", "who", "whoever", "whose", "which")

# Names of variables, parameters, attributes, functions and classes that say nothing or have a standard noun.
NAMES = {
    "found": "name what it holds: records, rows, path, match",
    "said": "message, outcome, output",
    "told": "message, warning",
    "one": "the singular of the collection: record, row, trial",
    "there": "existing, present, names",
    "made": "name what it holds: model, config, folder",
    "way": "method, mode, direction",
    "worth": "effect, score",
    "decided": "outcome, is_final",
    "given": "name what it holds: config, value, options",
    "meant": "expected, target",
    "counted": "count, total",
    "look": "analysis",
    "looks": "analyses",
    "places": "sites, positions, folders, decimals",
    "share": "fraction",
    "shares": "fractions",
}

# Words that no name has, not as a part either: `arm_set`, `TrunkCache`, `test_mistakes_are_told`.
NAME_PARTS = {
    "arm": "variant",
    "arms": "variants",
    "graft": "continuation, insertion",
    "grafts": "continuations",
    "grafted": "continued, inserted",
    "placebo": "replicate",
    "placebos": "replicates",
    "said": "message, reported",
    "told": "message, reported",
    "trunk": "backbone",
    "trunks": "backbones",
    "worth": "effect, score",
}

# Words and phrases of text: documents, messages, docstrings and comments. Each is a regular expression.
PHRASES = {
    r"trunks?": "backbone",
    r"(?:re)?graft(?:s|ed|ing)?": "insert; continue",
    r"placebos?": "repeated baseline",
    r"arms?": "variant",
    r"told": "reported; named",
    r"tells? (?:of|what|whether|how)": "shows; reports",
    r"(?:is|are|was|were|be|been) said": "is reported",
    r"(?:is|are|its) worth": "effect; score",
    r"fore(?:tell|tells|told)": "predict",
    r"(?:comes?|came|coming) to": "is; reaches; amounts to a number: give the number",
    r"(?:go|goes|going|gone|went) on(?! (?:a|an|the|one|disk)\b)": "continue; resume",
    r"laid over": "applied to",
    r"interim looks?": "interim analysis",
    r"(?:of|none of) (?:ours|theirs)": "of this project; of this search",
    r"one's own": "your own",
    r"whoever": "a user who; a process that",
    r"blindly": "at random",
    r"deed": "name the action",
    r"in a word": "in short",
}

MAX_SENTENCE = 40  # words

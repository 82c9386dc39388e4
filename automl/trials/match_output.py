"""Find a regular expression in the output of a command.

A program of the standard library alone, as a search in a long line can take for ever, and only the end of a
process stops it: `python -I -S match_output.py PATTERN FILE`. It prints a JSON list of the groups, each with
the number whose exponent the pattern cuts off, or null.
"""

import json
import re
import sys

EXPONENT = re.compile(r"[eE][+-]?\d")


def main() -> None:
    """Print the matches in a file."""
    pattern, values = re.compile(sys.argv[1]), []
    with open(sys.argv[2], encoding="utf-8", errors="replace") as lines:
        for line in lines:
            for match in pattern.finditer(line):
                cut = match[1] and EXPONENT.match(line, match.end(1))
                values.append([match[1] or "", line[match.start(1) :].split()[0] if cut else None])
    print(json.dumps(values))


if __name__ == "__main__":
    main()

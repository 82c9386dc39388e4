"""Colours and shapes of the report's marks."""

from attention import ATTENTIONS
from automl.report.style import colours_and_shapes
from search.record import MIXED, PLAIN


def test_types_differ_in_colour_or_shape() -> None:
    others = [f"timm:{i}" for i in range(12)]
    marks = colours_and_shapes([PLAIN, MIXED, *ATTENTIONS, *others])
    assert len(set(marks.values())) == len(marks) == 2 + len(ATTENTIONS) + len(others)
    assert "stroke" not in {shape for _, shape in marks.values()}, "filled marks have an area"


def test_types_of_the_table_keep_their_marks() -> None:
    assert colours_and_shapes(["ssa", "timm:se"])["ssa"] == colours_and_shapes(["ssa"])["ssa"]

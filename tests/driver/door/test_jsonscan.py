"""Reading JSON without a tree: against the parser of the standard library."""

import json
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.door.jsonscan import (
    DEPTH,
    VALUES,
    JsonRefused,
    JsonTooComplex,
    Members,
    Scan,
    members,
    name_pattern,
    object_at,
    string_at,
)

scalars = st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('ab"\\[]{},: \u00e9'), max_size=8)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["key", "k\\", '"', "{"]), inner),
    max_leaves=30,
)


def count(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(count(item) for item in inner)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max((depth(item) for item in inner), default=0)


def json_bounds(text: bytes) -> None:
    for starts in Members(text, name_pattern("x"), 1).slices():
        assert starts == []


def scanned(text: bytes, step: int, depth: int = DEPTH, values: int | None = VALUES) -> Scan:
    scan = Scan(depth, values)
    for start in range(0, len(text), step):
        scan.feed(text[start : start + step])
    scan.finish()
    return scan


@given(values, st.integers(1, 40), st.sampled_from([None, 1]), st.booleans())
def test_count_and_depth_are_exact(value: Any, step: int, indent: int | None, ascii_only: bool) -> None:
    """Whatever the text is and however it is sliced, its bounds hold exactly at its own size."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    has = {"depth": depth(value), "values": count(value)}
    assert scanned(text, step).values == has["values"]
    scanned(text, step, **has)
    scanned(text, step, depth=has["depth"], values=None)
    if has["depth"]:
        with pytest.raises(JsonTooComplex):
            scanned(text, step, depth=has["depth"] - 1, values=None)
    for bound in has:
        if has[bound]:
            with pytest.raises(JsonTooComplex):
                scanned(text, step, **{**has, bound: has[bound] - 1})


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (b"[" * 127 + b"]" * 127, True),
        (b"[" * 128 + b"]" * 128, True),
        (b"[" * 129 + b"]" * 129, False),
        (b"[" + b"1," * 499_997 + b"1]", True),
        (b"[" + b"1," * 499_998 + b"1]", True),
        (b"[" + b"1," * 499_999 + b"1]", False),
        (b"[" + b"{}," * 499_998 + b"[]]", True),
        (b"[" + b"{}," * 499_999 + b"[]]", False),
        (b'["' + b"[,{" * 500_000 + b'"]', True),
    ],
)
def test_bounds_of_a_message(text: bytes, fits: bool) -> None:
    """128 levels and 500,000 values pass, one more does not; what stands in strings does not count."""
    if fits:
        json_bounds(text)
    else:
        with pytest.raises(JsonTooComplex):
            json_bounds(text)


@pytest.mark.parametrize(
    "text", [b"", b" ", b"[", b'"a', b"]", b"[]]", b'{"a":"b}', b'{"a\\":1}', b'"\\', b"[1]][", b'"a\\"']
)
def test_incomplete_text_is_refused(text: bytes) -> None:
    """Brackets and strings must be complete."""
    with pytest.raises(JsonRefused):
        json_bounds(text)


def paths(value: Any, name: str, wanted: int, at: int = 0) -> list[Any]:
    """The members called `name` in objects at depth `wanted`, in the order of the text."""
    found: list[Any] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key == name and at + 1 == wanted:
            found.append(item)
        found += paths(item, name, wanted, at + 1)
    return found


@given(values, st.integers(1, 3), st.sampled_from([None, 1]), st.integers(1, 30))
def test_members_are_found_where_they_are(value: Any, wanted: int, indent: int | None, step: int) -> None:
    """Exactly the members of that name at that depth are found, whatever strings look like them."""
    text = json.dumps(value, indent=indent).encode()
    starts = list(chain.from_iterable(Members(text, name_pattern("key"), wanted, step=step).slices()))
    decoder = json.JSONDecoder()
    assert [decoder.raw_decode(text.decode(), start)[0] for start in starts] == paths(value, "key", wanted)


def test_escaped_names_are_the_same_name() -> None:
    """A name is found however its letters are written."""
    text = b'{"model":"a","m\\u006fdel" :"b","\\u006d\\u006F\\u0064\\u0065\\u006C":"c","models":"d","xmodel":"e"}'
    assert [string_at(text, start) for start in members(text, name_pattern("model"), 1)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "string", "object_"),
    [
        (b'"a\\u00e9\\"" ,', 'aé"', None),
        (b'{"a": 1} ,', None, {"a": 1}),
        (b'"open', None, None),
        (b'{"open":', None, None),
        (b'"\\x"', None, None),
        (b"12", None, None),
        (b'"' + b"x" * 70_000 + b'"', None, None),
        (b'{"a":"' + b"x" * 70_000 + b'"}', None, None),
        (b"{" + b'"a":{' * 10_000, None, None),
    ],
)
def test_single_values(text: bytes, string: str | None, object_: dict[str, Any] | None) -> None:
    """A string or an object is read where it stands; anything else, or one too long, is none."""
    assert string_at(text, 0) == string
    assert object_at(text, 0) == object_


@pytest.mark.parametrize(("namesakes", "fits"), [(20_000, True), (20_001, False)])
def test_namesakes_are_bounded(namesakes: int, fits: bool) -> None:
    """A text cannot make the search expensive with members of the same name one level down."""
    text = b'{"model":"m"' + b',"a":{"model":1}' * (namesakes - 1) + b"}"
    if fits:
        assert [string_at(text, start) for start in members(text, name_pattern("model"), 1)] == ["m"]
    else:
        with pytest.raises(JsonTooComplex, match="more than 20,000 members of one name"):
            list(members(text, name_pattern("model"), 1))

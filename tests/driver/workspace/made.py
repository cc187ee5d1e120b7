"""Archives of good and bad parts, as hypothesis makes them.

Most parts are good, so that what is behind a bad one is reached too, and many archives are good altogether.
"""

from hypothesis import strategies as st

from tests.driver.workspace.archives import END, block, gnu_name, padded, pax, record
from tests.driver.workspace.values import KEYWORDS, KINDS, MAGICS, MODES, NAMES, SIZES, VALUES

DIE = st.integers(0, 15)
PARTS = [b"a", b"b", b"c", b"a b", "ü".encode(), b"\xff", b"...", b"p" * 60]
GOOD_NAMES = st.builds(
    lambda lead, parts, slash: lead + slash.join(parts),
    st.sampled_from([b"", b"", b"./"]),
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=4),
    st.sampled_from([b"/", b"/", b"//", b"/./"]),
)
CONTENT = st.sampled_from([b"", b"abc", b"x" * 511, b"y" * 512, b"z" * 700])
OF_NO_MATTER = [record(b"mtime", b"1.5"), record(b"comment", b"\0\n="), record(b"SCHILY.xattr.user.x", b"\xff")]
GOOD_END = st.sampled_from([END, END, END + bytes(8192)])
BAD_END = st.sampled_from([b"", bytes(512), bytes(1100), END + b"\1" + bytes(511), bytes(512) + block(b"x") + END])


def mostly(good: st.SearchStrategy[bytes], bad: list[bytes]) -> st.SearchStrategy[bytes]:
    """One in sixteen is a bad one."""
    worse = st.sampled_from(bad)
    return DIE.flatmap(lambda die: worse if die == 7 else good)


NAME = mostly(GOOD_NAMES, NAMES)
MODE = mostly(st.sampled_from([b"0000644\0", b"0000755\0", b"0000677\0", b"   100 \0"]), MODES)
BAD_RECORDS = [record(keyword, value) for keyword in KEYWORDS for value in VALUES]
BAD_RECORDS += [b"0 path=a\n", b"99 path=a\n", b"7 path\n", b"path=a\n", b"11 path=a\n", b"-9 path=a\n", b"9 path=a "]


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """A file or a directory with what says its name and its size, in one of the three formats."""
    is_directory = draw(st.sampled_from([False, False, True]))
    name = draw(NAME) + (draw(st.sampled_from([b"/", b""])) if is_directory else b"")
    kind = draw(mostly(st.just(b"5") if is_directory else st.sampled_from([b"0", b"0", b"\0"]), KINDS))
    data = b"" if is_directory else draw(CONTENT)
    mode = draw(MODE)
    sizes = st.sampled_from([b"%011o\0" % len(data), b"%11o " % len(data), b"\x80" + len(data).to_bytes(11, "big")])
    size = draw(mostly(sizes, SIZES))
    form = draw(st.sampled_from(["ustar", "prefix", "gnu", "pax", "pax size"]))
    magic = draw(mostly(st.just(MAGICS[1] if form == "gnu" else MAGICS[0]), MAGICS))
    if form == "ustar":
        head = block(name[:100], kind, mode=mode, size_field=size, magic=magic)
    elif form == "prefix":
        head = block(name[:100], kind, mode=mode, size_field=size, magic=magic, prefix=draw(NAME)[:155])
    elif form == "gnu":
        head = gnu_name(name) + block(name[:100], kind, mode=mode, size_field=size, magic=magic)
    else:
        records = [record(b"path", name), *_records(draw)]
        if form == "pax size":
            records.append(record(b"size", draw(mostly(st.just(b"%d" % len(data)), VALUES))))
            size = b"%011o\0" % 0
        head = pax(*records) + block(b"short", kind, mode=mode, size_field=size, magic=magic)
    return head + padded(data)


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """A whole archive; now and then a header stands alone, is cut, or is followed by too little."""
    extra = st.sampled_from([b"", pax(OF_NO_MATTER[1], kind=b"g")])
    bad = [pax(record(b"path", b"a")), pax(record(b"path", b"a"), kind=b"g"), gnu_name(b"a"), pax(), bytes(512)]
    whole = b"".join(draw(mostly(extra, bad)) + entry for entry in draw(st.lists(entries(), max_size=5)))
    return whole + draw(DIE.flatmap(lambda die: BAD_END if die == 7 else GOOD_END))


def _records(draw: st.DrawFn) -> list[bytes]:
    """None, or some that say nothing of the entry; now and then one that may not be there."""
    some = draw(st.sampled_from([b"", b"", *OF_NO_MATTER, b"".join(OF_NO_MATTER)]))
    return [draw(mostly(st.just(some), BAD_RECORDS))]

"""The strict tar reader: one archive for each rule, and arbitrary bytes."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.errors import ArchiveRefused
from driver.workspace.tar_reader import Directory, File, FileData, FileEnd, FileStart, TarLimits, TarReader
from tests.driver.workspace.archives import END, block, directory, file, gnu_name, pad_name, padded, pax, record

LIMITS = TarLimits(bytes=10_000_000)


def read(archive: bytes, limits: TarLimits = LIMITS, chunk: int | None = None) -> dict[bytes, bytes | None]:
    """What the reader says is in the archive: content of files, None for directories."""
    reader = TarReader(limits)
    found: dict[bytes, bytes | None] = {}
    content: list[bytes] = []
    path = b""
    step = chunk or max(len(archive), 1)
    for at in range(0, len(archive), step):
        for event in reader.feed(archive[at : at + step]):
            match event:
                case Directory(parts):
                    assert b"/".join(parts) not in found
                    found[b"/".join(parts)] = None
                case File(parts, _, data):
                    found[b"/".join(parts)] = bytes(data)
                    assert parts[:-1] == () or b"/".join(parts[:-1]) in found
                case FileStart(parts, _, _):
                    path = b"/".join(parts)
                    assert parts[:-1] == () or b"/".join(parts[:-1]) in found
                case FileData(data):
                    content.append(bytes(data))
                case FileEnd():
                    found[path] = b"".join(content)
                    content.clear()
    reader.close()
    return found


@pytest.mark.parametrize("chunk", [1, 7, 511, 512, 513, None])
def test_reads_files_and_directories(chunk: int | None) -> None:
    """Files and directories come out, also those directories that have no entry, wherever the bytes are cut."""
    archive = directory(b"a/") + file(b"a/one", b"1" * 513) + file(b"b/c/two", b"") + file(b"b/three", b"3" * 512)
    expected = {b"a": None, b"a/one": b"1" * 513, b"b": None, b"b/c": None, b"b/c/two": b"", b"b/three": b"3" * 512}
    assert read(archive + END, chunk=chunk) == expected


def test_tells_the_execute_bit_of_the_owner() -> None:
    """Only the owner's execute bit survives from the mode."""
    archive = b"".join(file(b"%o" % mode, mode=b"%07o\0" % mode) for mode in (0o100, 0o677, 0o4755, 0o011))
    events = list(TarReader(LIMITS).feed(archive + END))
    executable = {event.parts[0]: event.executable for event in events if isinstance(event, File)}
    assert executable == {b"100": True, b"677": False, b"4755": True, b"11": False}


LONG = b"/".join([b"d" * 200] * 10) + b"/file"

ACCEPTED = {
    "empty": (b"", []),
    "ustar prefix": (block(b"name", prefix=b"some/prefix"), [b"some", b"some/prefix", b"some/prefix/name"]),
    "gnu magic has no prefix": (block(b"name", prefix=b"12345", magic=b"ustar  \0"), [b"name"]),
    "gnu long name": (gnu_name(LONG) + block(b"x", magic=b"ustar  \0"), [LONG]),
    "pax path": (pax(record(b"path", LONG)) + block(b"x"), [LONG]),
    "pax size": (pax(record(b"size", b"3")) + block(b"x", size=0) + padded(b"abc"), [b"x"]),
    "pax of no matter": (
        pax(record(b"mtime", b"1.5"), record(b"uname", "ü".encode()), record(b"SCHILY.xattr.user.x", b"\0\n="))
        + block(b"x"),
        [b"x"],
    ),
    "pax path that is no text": (
        pax(record(b"hdrcharset", b"BINARY"), record(b"path", b"\xff")) + block(b"x"),
        [b"\xff"],
    ),
    "pax flags of a file": (pax(record(b"SCHILY.fflags", b"nodump")) + block(b"x"), [b"x"]),
    "global comment": (pax(record(b"comment", b"c" * 40), kind=b"g") + block(b"x"), [b"x"]),
    "leading dot": (directory(b"./") + directory(b"./a/") + file(b"./a/x"), [b"a", b"a/x"]),
    "doubled slash": (file(b"a//x"), [b"a", b"a/x"]),
    "directory entry after its file": (file(b"a/x") + directory(b"a/"), [b"a", b"a/x"]),
    "base 256 size": (block(b"x", size_field=b"\x80" + bytes(10) + b"\x03") + padded(b"abc"), [b"x"]),
    "octal with spaces": (block(b"x", size_field=b"          3 ") + padded(b"abc"), [b"x"]),
    "old regular type": (block(b"x", b"\0"), [b"x"]),
    "bytes that are no text": (file(b"\xff\xfe\xa0"), [b"\xff\xfe\xa0"]),
    "backslash and colon": (file(b"a\\b:c"), [b"a\\b:c"]),
    "part of 255": (pax(record(b"path", b"n" * 255)) + block(b"x"), [b"n" * 255]),
    "a name of 4096": (pax(record(b"path", pad_name(4096))) + block(b"x"), [pad_name(4096)]),
    "name of 100": (block(b"n" * 100), [b"n" * 100]),
    "non-breaking space": (file("a\u00a0b".encode()), ["a\u00a0b".encode()]),
    "dots that are names": (file(b"...") + file(b"..a"), [b"...", b"..a"]),
}


@pytest.mark.parametrize(("archive", "names"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepts(archive: bytes, names: list[bytes]) -> None:
    """What honest writers produce is read."""
    found = read(archive + END, chunk=100)
    assert [name for name in found if name in names or found[name] is not None] == names


REFUSED = {
    "hard link": (block(b"x", b"1", link=b"y"), "'x': hard links are refused"),
    "symbolic link": (block(b"x", b"2", link=b"y"), "'x': symbolic links are refused"),
    "character device": (block(b"x", b"3"), "'x': character devices"),
    "block device": (block(b"x", b"4"), "'x': block devices"),
    "fifo": (block(b"x", b"6"), "'x': fifos"),
    "gnu long link": (block(b"x", b"K", size=5) + padded(b"abcd\0"), "'x': long names of links"),
    "gnu sparse": (block(b"x", b"S"), "'x': sparse files"),
    "contiguous": (block(b"x", b"7"), "'x': entries of type '7'"),
    "unknown type": (block(b"x", b"\xff"), r"'x': entries of type '\\\\xff'"),
    "pax sparse": (pax(record(b"GNU.sparse.major", b"1")) + block(b"x"), "record 'GNU.sparse.major' is refused"),
    "pax linkpath": (pax(record(b"linkpath", b"/etc")) + block(b"x"), "record 'linkpath' is refused"),
    "pax charset": (pax(record(b"hdrcharset", b"ISO-IR 8859 1 1998")) + block(b"x"), "'hdrcharset' is refused"),
    "pax unknown": (pax(record(b"SCHILY.realsize", b"9")) + block(b"x"), "record 'SCHILY.realsize' is refused"),
    "global path": (pax(record(b"path", b"a"), kind=b"g") + block(b"x"), "'path' is refused in a global pax header"),
    "global size": (pax(record(b"size", b"1"), kind=b"g") + block(b"x"), "'size' is refused in a global pax header"),
    "global link": (pax(record(b"linkpath", b"a"), kind=b"g") + block(b"x"), "'linkpath' is refused in a global"),
    "absolute": (file(b"/etc/passwd"), "'/etc/passwd': absolute paths are refused"),
    "absolute in pax": (pax(record(b"path", b"/etc")) + block(b"x"), "'/etc': absolute paths are refused"),
    "absolute in gnu": (gnu_name(b"/etc") + block(b"x"), "'/etc': absolute paths are refused"),
    "absolute by prefix": (block(b"x", prefix=b"/etc"), "'/etc/x': absolute paths are refused"),
    "dot dot": (file(b"a/../../x"), r"'a/../../x': `..` is refused"),
    "dot dot alone": (directory(b".."), r"'..': `..` is refused"),
    "dot dot by prefix": (block(b"x", prefix=b".."), r"'../x': `..` is refused"),
    "nul in pax": (pax(record(b"path", b"a\0b")) + block(b"x"), r"'a\\x00b': NUL and control"),
    "nul in gnu": (gnu_name(b"a\0b") + block(b"x"), "NUL and control"),
    "junk after nul": (block(b"a\0../../b"), "'a': the header's name goes on after a NUL"),
    "junk after nul in prefix": (block(b"a", prefix=b"b\0c"), "'a': the header's prefix goes on after a NUL"),
    "newline": (file(b"a\nb"), r"'a\\nb': NUL and control"),
    "escape": (file(b"\x1b[31m"), r"'\\x1b\[31m': NUL and control"),
    "delete": (file(b"\x7f"), "NUL and control"),
    "C1 control": (file("\u009b31m".encode()), "NUL and control"),
    "part too long": (pax(record(b"path", b"n" * 256)) + block(b"x"), "at most 255 bytes, this one has 256"),
    "name too long": (pax(record(b"path", pad_name(4097))) + block(b"x"), "at most 4,096 bytes, this one has 4,097"),
    "no name": (block(b""), "must have a name"),
    "no name in pax": (pax(record(b"path", b"")) + block(b"x"), "must have a name"),
    "file twice": (file(b"x") + file(b"x"), "'x': the same path comes twice"),
    "file twice, spelled apart": (file(b"a/x") + file(b"./a//x"), "'./a//x': the same path comes twice"),
    "directory twice": (directory(b"a/") + directory(b"a"), "'a': the same path comes twice"),
    "root twice": (directory(b"./") + directory(b"."), "the same path comes twice"),
    "file for directory": (directory(b"a/") + file(b"a"), "'a': a file cannot take a directory's place"),
    "file for unnamed directory": (file(b"a/x") + file(b"a"), "'a': a file cannot take a directory's place"),
    "directory for file": (file(b"a") + directory(b"a/"), "'a/': 'a' is a file already"),
    "below a file": (file(b"a") + file(b"a/x"), "'a/x': 'a' is a file already"),
    "file named as directory": (file(b"a/"), "'a/': a file cannot have the name of a directory"),
    "file named as root": (file(b"."), "'.': a file cannot have the name of a directory"),
    "checksum": (block(b"x", checksum=b"000001\0 "), "'x': the header's checksum is 1, its bytes add up to"),
    "checksum empty": (block(b"x", checksum=bytes(8)), "'x': the header's checksum is not an octal number"),
    "size not octal": (block(b"x", size_field=b"0000000000g\0"), "'x': the header's size is not an octal number"),
    "size with sign": (block(b"x", size_field=b"-0000000001\0"), "'x': the header's size is not an octal number"),
    "size empty": (block(b"x", size_field=bytes(12)), "'x': the header's size is not an octal number"),
    "size with two numbers": (block(b"x", size_field=b"1\x002\0\0\0\0\0\0\0\0\0"), "size is not an octal number"),
    "size negative": (block(b"x", size_field=b"\xff" * 12), r"'x': the header's size is negative \(-1\)"),
    "size very negative": (block(b"x", size_field=b"\xc0" + bytes(11)), "'x': the header's size is negative"),
    "size huge": (block(b"x", size_field=b"\x80" + b"\xff" * 11), "are left of the advertised ones"),
    "size overruns": (block(b"x", size=10_000_000), r"'x': its size is 10,000,000 bytes, and only 9,999,\d+ are left"),
    "mode": (block(b"x", mode=b"rwxr-xr-"), "'x': the header's mode is not an octal number"),
    "directory with data": (block(b"a/", b"5", size=1), "'a/': a directory has no data, this one says 1 bytes"),
    "directory with pax data": (pax(record(b"size", b"9")) + block(b"a/", b"5"), "a directory has no data"),
    "old tar": (block(b"x", magic=bytes(8)), "'x': only ustar, pax and GNU"),
    "pax size negative": (pax(record(b"size", b"-1")) + block(b"x"), "a pax size must be a decimal number"),
    "pax size long": (pax(record(b"size", b"9" * 20)) + block(b"x"), "a pax size must be a decimal number"),
    "pax size overruns": (pax(record(b"size", b"9" * 19)) + block(b"x"), "are left of the advertised ones"),
    "pax record twice": (pax(record(b"path", b"a"), record(b"path", b"b")) + block(b"x"), "'path' comes twice"),
    "pax without length": (pax(b"path=a\n") + block(b"x"), "must begin with its length"),
    "pax length zero": (pax(b"0 path=a\n") + block(b"x"), "must begin with its length"),
    "pax length with sign": (pax(b"-9 path=a\n") + block(b"x"), "must begin with its length"),
    "pax length too small": (pax(b"2 path=a\n") + block(b"x"), "does not end where its length says"),
    "pax length too large": (pax(b"99 path=a\n") + block(b"x"), "does not end where its length says"),
    "pax length into next": (pax(b"20 path=a\n10 path=b\n") + block(b"x"), "NUL and control"),
    "pax length huge": (pax(b"9" * 300 + b" path=a\n") + block(b"x"), "must begin with its length"),
    "pax without equals": (pax(b"7 path\n") + block(b"x"), "must be keyword=value"),
    "pax without keyword": (pax(b"6 =aa\n") + block(b"x"), "does not end|must be keyword=value"),
    "pax empty": (pax() + block(b"x"), "1 to 65,536 bytes, this one has 0"),
    "pax too large": (block(b"p", b"x", size=65_537), "1 to 65,536 bytes, this one has 65,537"),
    "pax negative": (block(b"p", b"x", size_field=b"\xff" * 12), "size is negative"),
    "gnu name too large": (block(b"l", b"L", size=65_537), "1 to 65,536 bytes, this one has 65,537"),
    "two pax headers": (pax(record(b"path", b"a")) * 2 + block(b"x"), "only one extended header"),
    "two kinds of names": (gnu_name(b"a") + pax(record(b"path", b"b")) + block(b"x"), "only one extended header"),
    "pax and no entry": (pax(record(b"path", b"a")), "followed by no entry"),
    "data after one end mark": (bytes(512) + file(b"x"), "'x': there is data after an end mark"),
    "data after both end marks": (END + file(b"x"), "'x': there is data after an end mark"),
    "junk after the end marks": (END + bytes(511) + b"\1", "there is data after an end mark"),
}


@pytest.mark.parametrize(("archive", "message"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("chunk", [None, 97])
def test_refuses(archive: bytes, message: str, chunk: int | None) -> None:
    """Each broken rule is refused with the entry and the rule, before anything of the entry comes out."""
    with pytest.raises(ArchiveRefused, match=message):
        read(archive + END, chunk=chunk)


INCOMPLETE = {
    "nothing": (b"", "without its two end marks"),
    "no end marks": (file(b"x", b"abc"), "'x': the archive ends after this entry, without its two end marks"),
    "one end mark": (file(b"x") + bytes(512), "without its two end marks"),
    "inside a header": (file(b"x") + block(b"y")[:300], "ends inside the block after"),
    "inside data": (file(b"x", b"a" * 600)[:1000], "'x': the archive ends 112 bytes before this entry does"),
    "inside padding": (file(b"x", b"abc")[:600], "'x': the archive ends inside the block after"),
    "inside pax": (pax(record(b"path", b"abc"))[:520], "bytes before this entry does"),
}


@pytest.mark.parametrize(("archive", "message"), INCOMPLETE.values(), ids=INCOMPLETE.keys())
def test_refuses_an_end_that_comes_too_early(archive: bytes, message: str) -> None:
    """An archive without its end is not complete, however much of it there is."""
    with pytest.raises(ArchiveRefused, match=message):
        read(archive)


def test_refuses_more_bytes_than_advertised() -> None:
    """The budget covers every byte, zeros after the end marks too."""
    archive = file(b"x", b"abc") + END
    assert read(archive, TarLimits(bytes=len(archive))) == {b"x": b"abc"}
    with pytest.raises(ArchiveRefused, match="more than the advertised 2,048 bytes"):
        read(archive + bytes(512), TarLimits(bytes=len(archive)))


def test_refuses_too_many_entries() -> None:
    """The number of entries is bounded; so are the directories that have no entry."""
    archive = b"".join(file(b"%d" % number) for number in range(4)) + END
    assert len(read(archive, TarLimits(bytes=10_000, entries=4))) == 4
    with pytest.raises(ArchiveRefused, match="'3': an archive has at most 3 entries"):
        read(archive, TarLimits(bytes=10_000, entries=3))
    assert TarLimits(bytes=1).entries == 200_000
    few = TarLimits(bytes=10_000, unnamed_directories=3)
    assert len(read(directory(b"a/") + file(b"b/c/x") + directory(b"d/e") + END, few)) == 6
    with pytest.raises(ArchiveRefused, match="at most 3 directories may have no entry of their own"):
        read(file(b"a/b/x") + file(b"c/d/x") + END, few)


def test_a_deep_name_costs_little_memory() -> None:
    """The deepest name makes two thousand directories; their paths are not held all at once."""
    archive = pax(record(b"path", b"d/" * 2047 + b"x")) + block(b"x") + END
    tracemalloc.start()
    try:
        made = sum(1 for event in TarReader(LIMITS).feed(archive) if isinstance(event, Directory))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made == 2047
    assert peak < 2_000_000


def test_messages_are_bounded_and_printable() -> None:
    """A hostile name cannot flood or colour a log."""
    with pytest.raises(ArchiveRefused) as caught:
        read(pax(record(b"path", b"/" + b"\x1b\xe2\x80\xae" * 10_000)) + block(b"x") + END)
    message = str(caught.value)
    assert message.isprintable()
    assert message.isascii()
    assert len(message) < 1500


@settings(deadline=None)
@given(st.binary(max_size=3000), st.integers(1, 1500))
def test_arbitrary_bytes_are_refused(data: bytes, chunk: int) -> None:
    """Noise is no archive."""
    with pytest.raises(ArchiveRefused):
        read(b"\1" + data, chunk=chunk)

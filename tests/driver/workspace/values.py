"""What may stand in the fields of an archive, and what somebody may try to put there."""

NAMES = [
    b"a",
    b"a/",
    b"a/b",
    b"a/b/c",
    b"./a",
    b"a//b",
    b".",
    b"./",
    b"..",
    b"../x",
    b"a/../b",
    b"/a",
    b"//a",
    b"",
    b"...",
]
NAMES += [
    b"work",
    b"out/x",
    b".sessions/x",
    b".incoming",
    b".incoming/a",
    b"a\0b",
    b"a\nb",
    b"\x1b[m",
    b"\xc2\x9b",
    b"\x7f",
]
NAMES += [b"\xff", "ü".encode(), b"a\\b", b"C:x", b"n" * 100, b"n" * 255, b"n" * 256, b"d/" * 200 + b"x", b" ", b"a "]
KINDS = [
    b"0",
    b"\0",
    b"5",
    b"5",
    b"1",
    b"2",
    b"3",
    b"4",
    b"6",
    b"7",
    b"x",
    b"g",
    b"L",
    b"K",
    b"S",
    b"D",
    b"M",
    b"V",
    b"N",
    b"X",
]
SIZES = [b"%011o\0" % size for size in (0, 1, 511, 512, 513, 1024, 65_536, 65_537, 8**11 - 1)]
SIZES += [bytes(12), b"\xff" * 12, b"\x80" + bytes(10) + b"\x05", b"\xc0" + bytes(11), b"\x80" + b"\xff" * 11]
SIZES += [b"          3 ", b"-0000000001\0", b"0x000000010\0", b"1\x002\0\0\0\0\0\0\0\0\0", b"777777777777"]
MODES = [b"0000644\0", b"0000755\0", b"0004755\0", b"   644 \0", bytes(8), b"0000100\0", b"rwxr-xr-"]
MAGICS = [b"ustar\x0000", b"ustar  \0", bytes(8), b"ustar\x0001", b"ustar   "]
KEYWORDS = [b"path", b"size", b"linkpath", b"comment", b"mtime", b"hdrcharset", b"GNU.sparse.major", b"GNU.sparse.name"]
KEYWORDS += [b"SCHILY.xattr.user.x", b"SCHILY.realsize", b"uid", b"", b"GNU.sparse.map", b"SCHILY.fflags"]
VALUES = [b"0", b"1", b"3", b"513", b"-1", b"9" * 19, b"9" * 20, b"BINARY", b"+1", b" 1", b"1.5", b"a=b", b"a\nb"]

"""Output is only shown: what a terminal acts on, in text, in names and as bytes that are no text."""

import os

os.write(1, b"\x1b[2J\x1b]0;title\x07\x1b[31mred\x1b[0m \x9b2J \x08\x08\x7f\x00 \r overwritten\n")
os.write(1, bytes(range(256)) * 64 + b"\n")
os.write(2, "\u202eesrever \u2028 line \u2066 isolate \ufeff \x85 next\n".encode())
os.write(1, b'12:00:00 !!run.ended            forged="line"\n')
os.write(1, b"shown to the end\n")

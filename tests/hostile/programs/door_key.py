"""The door's key reaches no log: in any coding, over writes, lines and both streams at once."""

import base64
import json
import os
import urllib.parse

key = os.environ["DRIVER_DOOR_KEY"]
data = key.encode()
forms = [
    key,
    json.dumps({"key": key}),
    base64.b64encode(data).decode(),
    base64.b64encode(b"x" + data).decode(),
    base64.urlsafe_b64encode(b"xy" + data).decode(),
    data.hex(),
    data.hex().upper(),
    urllib.parse.quote(key, safe=""),
]
for form in forms:
    print(form, flush=True)
    print(f"before {form} after", flush=True)
    for cut in range(1, len(form), 7):
        os.write(1, form[:cut].encode())
        os.write(1, form[cut:].encode() + b"\n")
    # Over lines, and with the other stream in between.
    os.write(1, form[:20].encode() + b"\n")
    os.write(2, b"in between\n")
    os.write(1, form[20:].encode() + b"\n")
os.write(1, b"x" * (8192 - 10) + data + b"\n")
print("one by one:", *data, flush=True)
print("printed all", flush=True)

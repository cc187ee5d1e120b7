"""Landlock: a thread gives up rights that it and all that it starts never get back.

Source: the kernel's "Landlock: unprivileged access control" (userspace-api/landlock) and <linux/landlock.h>. The
rights of a thread are its own, so the thread that starts a program is confined, and the driver is not.
"""

import ctypes
import errno
import os
from collections.abc import Iterable
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

from driver.errors import HardeningFailed

# The same numbers on every architecture (asm-generic/unistd.h).
_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_REMOVE_DIR: Final = 1 << 4
_REMOVE_FILE: Final = 1 << 5
_MAKE_CHAR: Final = 1 << 6
_MAKE_DIR: Final = 1 << 7
_MAKE_REG: Final = 1 << 8
_MAKE_SOCK: Final = 1 << 9
_MAKE_FIFO: Final = 1 << 10
_MAKE_BLOCK: Final = 1 << 11
_MAKE_SYM: Final = 1 << 12
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14

_BELOW: Final = _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
_NEVER: Final = _MAKE_CHAR | _MAKE_BLOCK

_SCOPE_ABSTRACT_UNIX_SOCKET: Final = 1 << 0
_SCOPE_SIGNAL: Final = 1 << 1

_REFER_SINCE: Final = 2
_TRUNCATE_SINCE: Final = 3
_SCOPES_SINCE: Final = 6

_MOST_BESIDE: Final = 4096

# Programs expect to be able to write to these, and nothing is kept there.
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


class _RulesetAttr(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


@cache
def version() -> int:
    """The kernel's version of Landlock, or 0 where it has none or it is switched off."""
    arguments = (None, ctypes.c_size_t(0), ctypes.c_uint32(_CREATE_RULESET_VERSION))
    known: int = _libc().syscall(_CREATE_RULESET, *arguments)
    return max(0, known)


def forbid_new_privileges() -> None:
    """From now on no exec of this thread, or of what it starts, gains rights (prctl(2) PR_SET_NO_NEW_PRIVS).

    Raises HardeningFailed.
    """
    if _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise HardeningFailed(f"prctl(PR_SET_NO_NEW_PRIVS): {os.strerror(ctypes.get_errno())}")


def confine_thread(writable: Iterable[Path], hidden: Iterable[Path] = ()) -> None:
    """Let this thread, and what it starts, write below the directories `writable` and nowhere else.

    Where the kernel can, it also keeps them from sending a signal to a process outside, and from connecting to its
    abstract sockets. The files `hidden` cannot be read either, by whatever path; nor can what comes to be later in the
    directories above them. All else can be read as before. `forbid_new_privileges` comes first. Directories that are
    not there are left out. Raises HardeningFailed.
    """
    known = version()
    readable = all_but(hidden)
    reading = _READ_FILE if readable else 0
    file_rights = reading | _WRITE_FILE | (_TRUNCATE if known >= _TRUNCATE_SINCE else 0)
    below = file_rights | _BELOW | (_REFER if known >= _REFER_SINCE else 0)
    attributes = _RulesetAttr(below | _NEVER, 0, 0)
    size = _RulesetAttr.handled_access_net.offset
    if known >= _SCOPES_SINCE:
        attributes.scoped = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL
        size = ctypes.sizeof(attributes)
    ruleset = _call("landlock_create_ruleset", _CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    try:
        for directory in writable:
            _allow(ruleset, str(directory), below, os.O_DIRECTORY | os.O_NOFOLLOW)
        for device in _DEVICES:
            _allow(ruleset, device, file_rights, 0)
        for path in readable:
            _allow(ruleset, path, reading, os.O_NOFOLLOW)
        _call("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def all_but(hidden: Iterable[Path]) -> list[str]:
    """Paths that together hold every file but the `hidden` ones, which are taken without their links.

    Landlock grants rights and takes none away, so what stands beside a hidden file, and beside each directory above
    it, is named. Empty where nothing is hidden. Raises HardeningFailed for a directory that cannot be listed or that
    holds more than 4,096 entries.
    """
    covered = {os.path.realpath(path) for path in hidden}
    above = {str(directory) for path in covered for directory in Path(path).parents}
    beside: list[str] = []
    for directory in above:
        try:
            with os.scandir(directory) as entries:
                found = [entry.path for entry in islice(entries, _MOST_BESIDE + 1) if not entry.is_symlink()]
        except OSError as error:
            raise HardeningFailed(f"{directory} cannot be listed for Landlock: {error.strerror}") from error
        if len(found) > _MOST_BESIDE:
            raise HardeningFailed(f"{directory}, above a file that is hidden, has more than {_MOST_BESIDE:,} entries")
        beside += [path for path in found if path not in covered and path not in above]
    return beside


def _allow(ruleset: int, path: str, rights: int, flags: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return
        raise HardeningFailed(f"{path} cannot be opened for Landlock: {error.strerror}") from error
    try:
        rule = _PathBeneathAttr(rights, place)
        _call("landlock_add_rule", _ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(place)


def _call(name: str, number: int, *arguments: object) -> int:
    result: int = _libc().syscall(number, *arguments)
    if result < 0:
        raise HardeningFailed(f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

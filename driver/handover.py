"""How the token comes to the driver: through a descriptor, never through a readable environment.

The kernel shows the environment that a process was started with in /proc/PID/environ, whatever the process
does to its variables later (proc(5)). entrypoint.sh therefore hands the token over on a descriptor. Where
somebody starts the driver without it, the driver does the same and replaces itself.

This module runs before anything else is imported, so it imports next to nothing.
"""

import os
import sys

_TOKEN = "HEPHAESTUS_SANDBOX_TOKEN"
_TOKEN_FILE = "HEPHAESTUS_SANDBOX_TOKEN_FILE"


def hold_stop_signals() -> None:
    """Keep SIGTERM and SIGINT pending until `release_stop_signals`.

    The kernel drops a signal that PID 1 has no handler for, unless it is blocked (pid_namespaces(7)), so a
    stop would be lost while the driver starts. A blocked signal also stays pending over an exec.
    """
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))


def release_stop_signals() -> None:
    """Deliver what was held. To be called when the handlers are installed, before the first child starts."""
    import signal

    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))


def take_token_out_of_environment() -> None:
    """Replace this process by itself with the token on a descriptor, where the environment holds it.

    Returns when there is nothing to do. To be called before a thread or a child is started. Raises
    SettingsError when the token cannot be handed over; it is then out of `os.environ`, but still readable
    in /proc, so the process has to end.
    """
    token = os.environb.get(_TOKEN.encode(), b"")
    if not token or os.environ.get(_TOKEN_FILE):
        return  # both at once is a wrong setting, which settings.read reports with all the others
    del os.environ[_TOKEN]
    try:
        os.environ[_TOKEN_FILE] = f"/dev/fd/{_pipe_holding(token)}"
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ)
    except OSError as error:
        from driver.errors import SettingsError

        reason = error.strerror or "it does not fit into a pipe, and may have 16,384 characters"
        raise SettingsError(
            [f"{_TOKEN}: cannot be taken out of the environment ({reason}); start the driver by entrypoint.sh"]
        ) from error


def _pipe_holding(token: bytes) -> int:
    """An inheritable descriptor that `token` can be read from. Raises OSError when it does not fit.

    A pipe holds 64 KiB, and less for a user who has many of them (pipe(7)). Nobody reads it yet, so a
    write that waits would wait for ever.
    """
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        if os.write(writer, token) != len(token):
            raise OSError
        os.set_inheritable(reader, True)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    return reader

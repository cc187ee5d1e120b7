"""The state of a stub in one SQLite file, so that one that was killed goes on where it was.

A call is answered only once what it changed is on the disk: SQLite writes all of it or nothing, and syncs the file and
its directory (sqlite.org, "Atomic Commit"). Calls that wait for the disk at one time share one write.
"""

import os
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, Self

import anyio
from anyio import to_thread

from driver.stub.errors import StateError
from driver.stub.remembered import Remembered, from_json, to_json
from driver.stub.results import Result
from driver.stub.state import GatewayState

_FORMAT: Final = 1
_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE state (scenario TEXT NOT NULL, content TEXT NOT NULL);
CREATE TABLE results (run TEXT, epoch INTEGER, exit INTEGER, digest TEXT, body BLOB, PRIMARY KEY (run, epoch));
PRAGMA user_version = {_FORMAT};
COMMIT;
"""


class StateFile:
    """The state file of one scenario, which is locked until it is closed. A context manager.

    `scenario` names what is played, the workspace included. Blocks. Raises StateError for a file that is in use, is of
    another scenario, or is none.
    """

    def __init__(self, path: Path, scenario: str) -> None:
        self._path = path
        self._scenario = scenario
        self._turn = anyio.Lock()
        self._content = ""
        self._written: set[tuple[str, int]] = set()
        with ExitStack() as stack:
            try:
                self._database = stack.enter_context(closing(_connected(path)))
                self._lock_and_form()
                self.before = self._read()
            except (sqlite3.Error, OSError) as error:
                raise StateError(path, f"cannot hold the state ({_said(error)})") from None
            except ValueError:
                raise StateError(path, "holds a state that cannot be read; remove it to begin anew") from None
            stack.pop_all()  # it stays open

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._database.close()

    async def keep(self, state: GatewayState) -> None:
        """Return once the state as it is now is on the disk. Raises StateError, and then nothing of it is."""
        async with self._turn:
            remembered = state.remember()
            content = to_json(remembered)
            fresh = [result for result in remembered.results if (result.run, result.epoch) not in self._written]
            if content == self._content and not fresh:
                return
            await to_thread.run_sync(self._write, content, fresh)
            self._content = content
            self._written |= {(result.run, result.epoch) for result in fresh}

    def _lock_and_form(self) -> None:
        database = self._database
        database.execute("PRAGMA synchronous = EXTRA")
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("BEGIN IMMEDIATE").execute("COMMIT")
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version == 0:
            database.executescript(_SCHEMA)
        elif version != _FORMAT:
            raise StateError(self._path, f"holds a state of the format {version}, and this stub reads {_FORMAT}")

    def _write(self, content: str, fresh: list[Result]) -> None:
        rows = [(result.run, result.epoch, result.exit, result.digest, result.body) for result in fresh]
        try:
            with self._database:
                self._database.execute("DELETE FROM state")
                self._database.execute("INSERT INTO state VALUES (?, ?)", (self._scenario, content))
                self._database.executemany("INSERT INTO results VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise StateError(self._path, f"cannot hold the state ({_said(error)})") from error

    def _read(self) -> Remembered | None:
        """What the stub before this one knew; None where there was none."""
        found = self._database.execute("SELECT scenario, content FROM state").fetchone()
        if found is None:
            return None
        scenario, content = found
        if scenario != self._scenario:
            raise StateError(self._path, "holds the state of another scenario or workspace; name another file")
        rows = self._database.execute("SELECT run, epoch, exit, digest, body FROM results ORDER BY rowid")
        results = [Result(*row) for row in rows]
        self._written = {(result.run, result.epoch) for result in results}
        return from_json(content, results)


def _connected(path: Path) -> sqlite3.Connection:
    # Made by us, since the key that signs the tokens will stand in it.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    return sqlite3.connect(path, timeout=0.0, check_same_thread=False)


def _said(error: Exception) -> str:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
        return "another stub has it open"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

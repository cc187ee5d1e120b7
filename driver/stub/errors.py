"""What the stub raises.

DriverError
└── StubError                    the stub cannot start; one line for the person who started it
    ├── ScenarioError            the scenario file is wrong; names the field
    ├── RepositoryError          the repository or range cannot be reviewed
    └── StateError               the state file cannot be read or written; names it

DriverError
└── Rejected                     a call is answered with a problem document (RFC 9457)
    ├── TokenNotAccepted         401
    ├── ClaimNotHeld             409 without an ETag
    └── ResultKept               409 with the ETag of the first result
"""

from pathlib import Path

from driver.errors import DriverError


class StubError(DriverError):
    """The stub cannot start."""


class ScenarioError(StubError):
    """The scenario is wrong."""


class RepositoryError(StubError):
    """The repository cannot be reviewed."""


class StateError(StubError):
    """The state file cannot be used."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")


class Rejected(DriverError):
    """The gateway refuses a call.

    `status`, `code` and `detail` go into the problem document, `headers` beside it.
    """

    def __init__(self, status: int, code: str, detail: str, *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = headers


class TokenNotAccepted(Rejected):
    """The sandbox token is not accepted."""

    def __init__(self, detail: str) -> None:
        super().__init__(401, "token_not_accepted", detail, headers=(("www-authenticate", "Bearer"),))


class ClaimNotHeld(Rejected):
    """The claim does not hold the run (any more)."""

    def __init__(self, detail: str) -> None:
        super().__init__(409, "stale_claim", detail)


class ResultKept(Rejected):
    """This claim has delivered its result before."""

    def __init__(self, etag: str) -> None:
        super().__init__(409, "result_kept", "a result of this claim is already stored", headers=(("etag", etag),))

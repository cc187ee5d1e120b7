"""Every error that this project raises.

The class docstring is the default message; the raise site adds the facts.

    DriverError
    ├── SettingsError                a setting is missing or wrong                     (exit 78)
    ├── HardeningFailed              the kernel would not hide this process's memory   (exit 70)
    ├── GatewayError
    │   ├── GatewayUnavailable       passing: worth another try
    │   ├── GatewayRefused           this call will never work (other 3xx and 4xx)
    │   ├── ContractError            an answer that is not what docs/protocol.md says
    │   ├── TokenRejected            401: the sandbox was taken back, or the token expired
    │   ├── ClaimLost                409: the claim no longer holds the run
    │   └── WorkErased               410: the work was erased
    ├── Unisolated                   the network policy does not hold                  (exit 77)
    ├── ClaimInDoubt                 the lease may be over; nothing may be written for it
    ├── WorkspaceError
    │   ├── ArchiveRefused           an incoming archive broke a rule
    │   ├── TransferFailed           the archive could not be had, or is not the promised one
    │   └── PackagingError           `out/` holds something that may not go out          (exit 43)
    ├── ProgramError                 a program could not be started, or would not end
    ├── DoorRefusal                  the door's own answer to a program
    ├── UnknownKind                  no runner for a run's kind can be used
    └── KindFailed                   a stage of a kind failed; carries the exit
"""

import errno
from typing import Final

NO_ROOM: Final = "disk"
"""The reason of a run that failed because a disk was full, or because its programs used more of it than they may."""

_NO_ROOM_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DriverError(Exception):
    """The driver failed."""

    def __init__(self, facts: str = "") -> None:
        default = (self.__doc__ or "").strip().splitlines()[0]
        super().__init__(facts or default)


class SettingsError(DriverError):
    """Settings are missing or wrong.

    `problems` holds one line for each, naming the setting and what is allowed.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class HardeningFailed(DriverError):
    """The kernel does not let this process make itself unreadable."""


class GatewayError(DriverError):
    """A gateway call failed."""


class GatewayUnavailable(GatewayError):
    """The gateway cannot answer now.

    `retry_after` is the gateway's wish in seconds, or None when it told none.
    """

    def __init__(self, facts: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(facts)
        self.retry_after = retry_after


class GatewayRefused(GatewayError):
    """The gateway refused the call for good."""

    def __init__(self, call: str, status: int, code: str | None) -> None:
        super().__init__(f"{call}: refused with {status}" + (f" ({code})" if code else ""))
        self.status = status
        self.code = code


class ContractError(GatewayError):
    """The gateway's answer is not what the protocol says."""


class TokenRejected(GatewayError):
    """The gateway does not accept the sandbox token any more."""


class ClaimLost(GatewayError):
    """The claim no longer holds the run."""


class WorkErased(GatewayError):
    """The work of the run was erased."""


class Unisolated(DriverError):
    """The network policy does not hold in this sandbox."""


class ClaimInDoubt(DriverError):
    """The lease was not renewed in time, so nothing may be written for this claim."""


class WorkspaceError(DriverError):
    """The workspace cannot be used."""


class ArchiveRefused(WorkspaceError):
    """The archive breaks a rule for incoming archives."""


class TransferFailed(WorkspaceError):
    """The archive could not be downloaded as promised."""


class PackagingError(WorkspaceError):
    """`out/` holds something that may not be uploaded."""


class ProgramError(DriverError):
    """A program could not be started, or would not end."""


class UnknownKind(DriverError):
    """No runner is installed for this kind."""


class DoorRefusal(DriverError):
    """The door refused a call.

    `status` and `code` are what the program reads; `retry_after` is in seconds.
    """

    def __init__(self, status: int, code: str, detail: str, *, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after = retry_after


class KindFailed(DriverError):
    """A stage of the kind failed.

    `exit` is an exit code of driver.exits.
    """

    def __init__(self, exit: int, reason: str) -> None:
        super().__init__(reason)
        self.exit = exit
        self.reason = reason


def leaves(error: BaseException) -> list[BaseException]:
    """The single errors in an exception group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part)]
    return [error]


def no_room(error: BaseException) -> bool:
    """Whether a full disk, or a quota, is behind an error: itself, one of a group's, or a cause of them."""
    return any(_no_room(leaf) for leaf in leaves(error))


def _no_room(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM_ERRORS:
            return True
        error = error.__cause__
    return False

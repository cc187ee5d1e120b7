"""What can go wrong in a bundled program.

ProgramFault
├── InputsUnusable        the workspace lacks what the work needs
├── CallFault
│   ├── CallCut           the call broke, timed out or ended without its last event: worth another try
│   ├── CallBusy          429 or 5xx: worth another try, later
│   ├── CallUnanswered    every try was spent
│   ├── ContextFull       the provider says that the transcript is too long
│   └── CallRefused       the call will never work
│       └── DoorClosed    no call of this run will work any more
│           └── NotAdmitted   admission refused the work itself
├── FrameTooLarge         one server-sent event is over its bound
└── ToolRefused           a tool call that cannot be done; the model reads why
"""


class ProgramFault(Exception):
    """The program failed."""

    def __init__(self, facts: str = "") -> None:
        super().__init__(facts or (self.__doc__ or "").strip().splitlines()[0])


class InputsUnusable(ProgramFault):
    """The workspace lacks what the work needs."""


class CallFault(ProgramFault):
    """A call through the door failed."""


class CallCut(CallFault):
    """The call broke off, timed out, or ended without its last event."""


class CallBusy(CallFault):
    """The other side cannot answer now.

    `retry_after` is its wish in seconds, or None. `local` tells that the door itself had no room: such a
    refusal reached no provider, so it spends no try.
    """

    def __init__(self, facts: str, *, retry_after: float | None = None, local: bool = False) -> None:
        super().__init__(facts)
        self.retry_after = retry_after
        self.local = local


class CallUnanswered(CallFault):
    """Every try of the call was spent."""


class ContextFull(CallFault):
    """The transcript is longer than the model's context."""


class CallRefused(CallFault):
    """The call was refused for good.

    `status` is the HTTP status of the refusal, or 0 when this side refused the answer.
    """

    def __init__(self, facts: str, *, status: int = 0) -> None:
        super().__init__(facts)
        self.status = status


class DoorClosed(CallRefused):
    """The door answers no call of this run any more."""


class NotAdmitted(DoorClosed):
    """Admission refused the work: its answer is not wanted any more."""


class FrameTooLarge(ProgramFault):
    """One server-sent event is over its bound."""


class ToolRefused(ProgramFault):
    """A tool call that cannot be done; the model reads why."""

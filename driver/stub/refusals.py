"""What a person at the terminal has to know of a model call that was refused."""

from driver.stub.journal import Entry


def refusal_line(entry: Entry) -> str | None:
    """One line for a refusal by the provider or a fault of the stub itself; None for any other entry."""
    if entry.event == "provider.refused":
        return f"the provider answered a model call with {entry.fields['status']}"
    if entry.event == "request.refused" and str(entry.fields["code"]).startswith("provider_"):
        return str(entry.fields["detail"])
    return f"a fault of the stub: {entry.fields['error']}" if entry.event == "request.failed" else None

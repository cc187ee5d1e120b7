"""The gateway as the driver sees it: its messages, one method for each call, and what is worth repeating."""

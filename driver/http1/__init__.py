"""HTTP/1.1 on anyio and h11: a small server for the door and the stub, and the door's client.

Unlike a server framework it lets its user see when the client has gone, take the body as it arrives, and
break an answer off so that the client sees it broken. Framing rules: RFC 9112.
"""

from driver.http1.connection import BodyStalled, ClientGone, Headers, Patience
from driver.http1.request import Request
from driver.http1.server import Exchange, Handler, serve

__all__ = ["BodyStalled", "ClientGone", "Exchange", "Handler", "Headers", "Patience", "Request", "serve"]

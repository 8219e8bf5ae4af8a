"""Logins to the pages: an encrypted cookie carries the key, and each request is authorized by it as on the API."""

import base64
import hashlib
import secrets
from functools import cached_property
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from fastapi import Request, Response

from app.http.errors import Forbidden

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

COOKIE: Final = "palimpsest_login"
LOGIN_SECONDS: Final = 12 * 3600
"""The time after which a person logs in again."""
HOME: Final = "/ui/"


class Logins:
    """Encrypts and signs the keys of people who are logged in."""

    def __init__(self, secret: str | None) -> None:
        """`secret` None: one of this process alone."""
        self._secret = secret or secrets.token_urlsafe(32)

    def seal(self, key: str) -> str:
        """Return the value of a cookie for a key."""
        return self._cipher.encrypt(key.encode()).decode()

    def unseal(self, cookie: str) -> str | None:
        """Return the key in a cookie; None if it is forged, altered or too old."""
        from cryptography.fernet import InvalidToken

        try:
            return self._cipher.decrypt(cookie.encode(), ttl=LOGIN_SECONDS).decode()
        except (InvalidToken, UnicodeError):
            return None

    @cached_property
    def _cipher(self) -> "Fernet":
        """The cipher, made when somebody logs in. Slowly: a reader's cookie must not help to guess a weak API key."""
        from cryptography.fernet import Fernet

        derived = hashlib.scrypt(self._secret.encode(), salt=b"palimpsest pages", n=2**14, r=8, p=1, dklen=32)
        return Fernet(base64.urlsafe_b64encode(derived))


def authorization(request: Request) -> str | None:
    """Return the Authorization header of a page's request: its own, or one with the key of its cookie."""
    header = request.headers.get("authorization")
    cookie = request.cookies.get(COOKIE)
    if header is not None or cookie is None:
        return header
    logins: Logins = request.state.services.by_class[Logins]
    key = logins.unseal(cookie)
    return None if key is None else f"Bearer {key}"


def log_in(request: Request, response: Response, key: str) -> None:
    """Set the login cookie for a key."""
    logins: Logins = request.state.services.by_class[Logins]
    response.set_cookie(
        COOKIE,
        logins.seal(key),
        max_age=LOGIN_SECONDS,
        path=HOME,
        secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),  # a liar harms only itself
        httponly=True,
        samesite="lax",
    )


def log_out(response: Response) -> None:
    """Remove the cookie."""
    response.delete_cookie(COOKIE, path=HOME, httponly=True, samesite="lax")


def check_origin(request: Request) -> None:
    """Raise Forbidden for a form that was sent from a page of another site, or by a browser that does not say."""
    fetched = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    same = fetched == "same-origin" if fetched else origin and urlsplit(origin).netloc == request.headers.get("host")
    if not same:
        raise Forbidden("this form must be sent from the server's own page")


def safe_target(target: str | None) -> str:
    """Return the path of a page to go to, or the first page for anything else, such as another site's address."""
    return target if target and target.startswith(HOME) and "\\" not in target and target.isprintable() else HOME

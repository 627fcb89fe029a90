"""Somebody with a browser, but without the browser: cookies, forms and redirects."""

from __future__ import annotations

import html
import re
from http.cookies import SimpleCookie
from typing import Any

import httpx
from fastapi import FastAPI
from in_process import InProcess

KEY = re.compile(r'name="form_key" value="([0-9a-f]{64})"')
ONCE = re.compile(r'name="once" value="([0-9a-f]{32})"')
ORIGIN = "http://terrine"
SCREENS = (
    "",
    "/open",
    "/open?ensemble=digits&mechanism=immutable",
    "/projects/study",
    "/projects/study/close",
    "/projects/study/dossier",
    "/requests",
    "/tokens",
    "/ensembles",
    "/log",
    "/audit",
)
"""Paths of all screens, below /admin, where there is a study called study."""


class Visitor:
    """Visits the pages of an app. Sends back the cookies that it was given, and no script runs."""

    def __init__(self, app: FastAPI, send: InProcess) -> None:
        self.app, self._send = app, send
        self.cookies: dict[str, str] = {}
        self.last_key = self.last_once = ""

    def request(self, method: str, path: str, **request: Any) -> httpx.Response:
        headers = {"Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
        request["headers"] = headers | request.get("headers", {})
        reply = self._send(self.app, method, path, **request)
        for line in reply.headers.get_list("set-cookie"):
            for name, morsel in SimpleCookie(line).items():
                self.cookies[name] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[name]
        found = KEY.search(reply.text)
        self.last_key = found[1] if found else self.last_key
        found = ONCE.search(reply.text)
        self.last_once = found[1] if found else self.last_once
        return reply

    @property
    def actor(self) -> str:
        """Return the actor that the log knows this visitor by."""
        return f"token:{self.cookies['__Host-terrine-session'].split('.')[1]}"

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def post(self, path: str, *, key: str | None = None, **fields: str) -> httpx.Response:
        """Send a form as a page of ours would, with what the last page hides in it."""
        given = {"form_key": self.last_key if key is None else key, **fields}
        if path == "/admin/tokens":
            given = {"once": self.last_once, **given}
        return self.request("POST", path, data=given, headers={"Origin": ORIGIN})

    def sign_in(self, token: str) -> httpx.Response:
        self.get("/admin/sign-in")
        reply = self.post("/admin/sign-in", token=token)
        self.get("/admin")
        return reply


def text_of(reply: httpx.Response) -> str:
    """Return what a page says, without its markup."""
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", reply.text).split()))

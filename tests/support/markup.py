"""The links and forms of a page, and its inline scripts, styles and handlers."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

TEXT: Final = re.compile(r">[^<]+<")


@dataclass
class Markup(HTMLParser):
    """The links, the forms and the inline parts of a page, as the parser finds them."""

    links: list[str] = field(default_factory=list)
    forms: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """The action of each form that is posted, with the values of its named fields."""
    inline: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, html: str) -> "Markup":
        """Parse a page."""
        found = cls()
        found.feed(html)
        found.close()
        return found

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._posts = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag == "form":
            self._posts = given.get("method") == "post"
            if self._posts:
                self.forms.append((given.get("action") or "", {}))
        if tag in ("input", "button", "select", "textarea") and self._posts and given.get("name"):
            self.forms[-1][1][str(given["name"])] = given.get("value") or ""
        if tag == "style" or (tag == "script" and not given.get("src")) or "style" in given:
            self.inline.append(self.get_starttag_text() or tag)
        if any(name.startswith("on") or "javascript:" in (value or "") * (name != "value") for name, value in attrs):
            self.inline.append(self.get_starttag_text() or tag)


def without_contents(html: str) -> str:
    """Return a page's HTML without its texts."""
    return TEXT.sub("><", html)

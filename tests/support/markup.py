"""The links and forms of a page, and its inline scripts, styles and handlers."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

TEXT: Final = re.compile(r">[^<]+<")


@dataclass(frozen=True)
class Form:
    """A form: its method in lower case, its address, and its named fields with their values."""

    method: str
    action: str
    fields: dict[str, str]


@dataclass
class Markup(HTMLParser):
    """The links, the forms and the inline parts of a page, as the parser finds them."""

    links: list[str] = field(default_factory=list)
    forms: list[Form] = field(default_factory=list)
    inline: list[str] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, html: str) -> "Markup":
        """Parse a page."""
        found = cls()
        found.feed(html)
        found.close()
        return found

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag == "form":
            self.forms.append(Form(given.get("method") or "get", given.get("action") or "", {}))
        if tag in ("input", "button", "select", "textarea") and self.forms and given.get("name"):
            self.forms[-1].fields[str(given["name"])] = given.get("value") or ""
        if tag == "style" or (tag == "script" and not given.get("src")) or "style" in given:
            self.inline.append(self.get_starttag_text() or tag)
        if any(name.startswith("on") or "javascript:" in (value or "") * (name != "value") for name, value in attrs):
            self.inline.append(self.get_starttag_text() or tag)


def without_contents(html: str) -> str:
    """Return a page's HTML without its texts."""
    return TEXT.sub("><", html)

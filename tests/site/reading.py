"""A page's HTML as a reader and a browser take it: its text by paragraphs, its links, its anchors."""

from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

BLOCKS: Final = {"h1", "h2", "h3", "h4", "h5", "h6", "p", "li", "td", "th", "pre"}
COUNTED: Final = (BLOCKS - {"p"}) | {"ul", "ol", "table", "tr", "em", "strong", "code", "img"}
UNREAD: Final = {"script", "style", "button", "nav"}
LINKS: Final = {"href", "src", "srcset"}


@dataclass
class Reading(HTMLParser):
    """A page's text, links and anchors; of a whole page of the site (`article`), only the text of its article."""

    html: str
    article: bool = False
    texts: list[str] = field(default_factory=list)
    tags: Counter[str] = field(default_factory=Counter)
    links: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Read the page."""
        super().__init__()
        self._on = not self.article
        self._unread = 0
        self._words = ""
        self.feed(self.html)
        self._end_text()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take links and anchors anywhere, and the text of the article."""
        values = dict(attrs)
        self.links += [value for name, value in attrs if name in LINKS and value]
        self.ids |= {value for name, value in attrs if name in ("id", "name") and value}
        self._on = self._on or tag == "article"
        if not self._on:
            return
        self.tags[tag] += tag in COUNTED
        if tag in UNREAD or values.get("class") == "headerlink":
            self._unread += 1
        if tag in BLOCKS:
            self._end_text()

    def handle_endtag(self, tag: str) -> None:
        """End a paragraph, or the article."""
        if self._unread and (tag in UNREAD or tag == "a"):
            self._unread -= 1
        elif tag in BLOCKS:
            self._end_text()
        elif tag == "article":
            self._end_text()
            self._on = False

    def handle_data(self, data: str) -> None:
        """Take text."""
        if self._on and not self._unread:
            self._words += data

    def _end_text(self) -> None:
        text, self._words = " ".join(self._words.split()), ""
        if text:
            self.texts.append(text)

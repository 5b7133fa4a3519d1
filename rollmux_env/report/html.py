"""Pages that are one HTML file: the house style is put into them, and they may ask nobody for anything but their own server."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

STYLE = "style.css"
_STYLE_HERE, _POLICY_HERE = "/* style.css */", "<!-- policy -->"
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.S)


def one_file(template: str) -> str:
    """A page from its template, which has the two marks `/* style.css */` and `<!-- policy -->`.

    The browser is told to run the page's own scripts alone, by their hashes, so that no text in it can become one, and to connect
    to nobody but the server that it is from.
    """
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in _SCRIPT.findall(template))
    scripts = " ".join(f"'sha256-{value}'" for value in hashes) or "'none'"
    rules = (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'"
    )
    policy = f'<meta http-equiv="Content-Security-Policy" content="{rules}; form-action \'none\'">'
    style = files("rollmux_env.report").joinpath(STYLE).read_text(encoding="utf-8")
    return template.replace(_POLICY_HERE, policy, 1).replace(_STYLE_HERE, style, 1)

"""How this installation gets one of the optional dependencies that pyproject.toml lists as extras."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


def install_command(extra: str) -> str:
    """The pip command that adds it: from the checkout or repository that Slipstream itself was installed from."""
    origin = _origin()
    url, folder = str(origin.get("url", "")), origin.get("dir_info")
    if isinstance(folder, dict) and url.startswith("file:") and (path := Path(unquote(urlsplit(url).path))).is_dir():
        return f"pip install {'-e ' if folder.get('editable') else ''}'{path}[{extra}]'"
    if isinstance(vcs := origin.get("vcs_info"), dict):
        return f"pip install 'slipstream[{extra}] @ {vcs.get('vcs', 'git')}+{url}'"
    return f"pip install 'slipstream[{extra}]'"


def _origin() -> dict[str, Any]:
    """What pip noted of it (direct_url.json). Empty where it came from an index, or was not installed."""
    try:
        noted = json.loads(Distribution.from_name("slipstream").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}

"""Links of the project, as an index of packages shows them: absolute ones, below the address that pyproject.toml gives.

`tools/hatch_metadata.py` loads this file by its path, without gemmill or torch: it imports the standard library alone.
"""

import re

_LINK = re.compile(r"(\]\(|<img src=\")(?!https?:|#|mailto:)([^)\"\s]+)")
_PICTURES = (".svg", ".png")


def urls(repository: str) -> dict[str, str]:
    """The project's addresses by their labels, as a package's metadata has them."""
    return {
        "Homepage": repository,
        "Documentation": absolute_link("docs/index.md", repository),
        "Changelog": absolute_link("CHANGELOG.md", repository),
        "Issues": f"{repository}/issues",
    }


def absolute(text: str, repository: str) -> str:
    """The README's text, with links and pictures below the repository's address."""
    return _LINK.sub(lambda match: match[1] + absolute_link(match[2], repository), text)


def absolute_link(path: str, repository: str) -> str:
    """The address of a file of the repository: of a picture its bytes, of any other its page."""
    return f"{repository}/{'raw' if path.endswith(_PICTURES) else 'blob'}/main/{path}"

"""Generated pages of the docs site, and links that lead out of `docs/`: hooks of `mkdocs.yml`.

CONTRIBUTING, CHANGELOG, SECURITY and THIRD_PARTY become pages. `ops.md` lists every op that is declared, `api.md` and a page
for each family every public name. A link to any other file of the repository becomes the file's path, since the site has no
sources. Search ranks the notes last.
"""

import inspect
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from gemmill.family import Family
from gemmill.registry import REGISTRY

ROOT = Path(__file__).resolve().parents[1]
OF_THE_PROJECT = {
    f"{name}.md": f"{name.lower()}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY", "THIRD_PARTY")
}
"""Files outside `docs/`, and the pages that they become."""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")
_OF_ALL = ("cli.md", "api.md", "index.md", "quickstart.md")
"""Pages that name ops by the way."""
_NOTES = "<!-- notes -->"
_BOOST_OF_NOTES = 0.1
"""Factor of the search's score of a note: the notes are for contributors."""
_FAMILIES = "<!-- functions of families -->"
_OF = re.compile(r"<!-- (all|[\w, ]+) of ([\w.]+) -->")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the notes, and the functions of each family, into the navigation."""
    config.nav[-1]["Notes"] += [f"notes/{path.name}" for path in notes()]
    (api,) = (part["API"] for part in config.nav if "API" in part)
    api += [{family.name: api_page_of(family)} for family in with_functions()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs/`."""
    for name, page in OF_THE_PROJECT.items():
        files.append(File.generated(config, page, content=relinked((ROOT / name).read_text(encoding="utf-8"), "")))
    files.append(File.generated(config, "ops.md", content=ops_page()))
    pages = guide()
    for family in with_functions():
        files.append(File.generated(config, api_page_of(family), content=api_page(family, pages)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links and lists of a page of `docs/`, and the rank of the notes."""
    if page.file.src_uri.startswith("notes/"):
        page.meta["search"] = {"boost": _BOOST_OF_NOTES}
    if page.file.generated_by is not None:
        return markdown
    text = relinked(markdown, f"docs/{posixpath.dirname(page.file.src_uri)}")
    text = text.replace(_FAMILIES, families_table()).replace(_NOTES, notes_table())
    return _OF.sub(lambda match: shown(match[2], names_in(match[2], match[1])), text)


def relinked(text: str, folder: str) -> str:
    """The text of a file in `folder` of the repository, with links that hold in the site."""

    def link(match: re.Match[str]) -> str:
        shown, target, place = match[1], posixpath.normpath(posixpath.join(folder, match[2])), match[3] or ""
        if target.startswith("docs/"):
            target += "/index.md" if (ROOT / target).is_dir() else ""
            shown = title_of(ROOT / target) if shown.endswith(".md") else shown
            within = posixpath.relpath(target, folder if folder.startswith("docs") else "docs")
            return f"[{shown}]({within}{place})"
        if target in OF_THE_PROJECT:
            return (
                f"[{shown}]({posixpath.relpath(OF_THE_PROJECT[target], folder.removeprefix('docs').strip('/') or '.')})"
            )
        return f"{shown} (`{target}`)" if shown != target and f"`{target}`" != shown else f"`{target}`"

    return _LINK.sub(link, text)


def title_of(page: Path) -> str:
    """A page's title."""
    return page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")


def ops_page() -> str:
    """Every op: the rest of its schema, and the page that tells of it. Raises ValueError for an op that no page names."""
    pages = guide()
    lines = [
        "# Ops",
        "",
        "Each op is `torch.ops.gemmill.<name>`. The functions of the same names in `gemmill` allocate what they return:",
        "[API](api.md). Ops whose names begin with `vllm_` are the same kernels with vLLM's bits and refusals, which",
        "`import gemmill.compat.vllm.ops` puts where vLLM looks for them.",
    ]
    for family in REGISTRY.families:
        lines += [
            "",
            f"## {heading_of(family, pages)}",
            "",
            "| op, and where it is told of | arguments and results |",
            "| --- | --- |",
        ]
        for op in family.asks.ops:
            name = op.schema.name
            lines.append(f"| [`{name}`]({page_of(name, pages)}) | `{op.schema.schema.removeprefix(name)}` |")
    return "\n".join(lines) + "\n"


def guide() -> dict[str, str]:
    """The pages of the guide, by file name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}


def heading_of(family: Family, pages: Mapping[str, str]) -> str:
    """A family's name, after the title of the page that tells of its first op."""
    title = title_of(ROOT / "docs" / page_of(family.asks.ops[0].schema.name, pages))
    return f"{title}: `{family.name}`"


def page_of(op: str, pages: Mapping[str, str]) -> str:
    """The page that names an op most often. An op under vLLM's name counts as its own."""
    for name in (op, op.removeprefix("vllm_")):
        told = {page: len(re.findall(rf"(?<!\w){name}(?!\w)", text)) for page, text in pages.items()}
        page = max(told, key=lambda page: (told[page] > 0 and page not in _OF_ALL, told[page]))
        if told[page]:
            return page
    raise ValueError(f"op {op} is on no page of docs/: tell what it does where its family's ops are told of")


def notes() -> list[Path]:
    """The files of the notes."""
    return sorted(path for path in (ROOT / "docs" / "notes").glob("*.md") if path.name != "index.md")


def notes_table() -> str:
    """Every note, with its title."""
    rows = (f"| [{path.stem}]({path.name}) | {title_of(path)} |" for path in notes())
    return "\n".join(["| note | about |", "| --- | --- |", *rows])


def with_functions() -> list[Family]:
    """Families whose ops have functions."""
    return [family for family in REGISTRY.families if family.functions is not None]


def api_page_of(family: Family) -> str:
    """The page of a family's functions."""
    return f"api_{family.name}.md"


def families_table() -> str:
    """Every family, with the page of its functions and their names."""
    pages = guide()
    rows = (
        f"| [{heading_of(family, pages)}]({api_page_of(family)}) | {', '.join(f'`{name}`' for name in names_of(family))} |"
        for family in with_functions()
    )
    return "\n".join(["| family | functions |", "| --- | --- |", *rows])


def names_of(family: Family) -> list[str]:
    """The public functions of a family."""
    return list(import_module(str(family.functions)).__all__)


def api_page(family: Family, pages: Mapping[str, str]) -> str:
    """The functions of a family: of each its docstring, then its parameters as a table."""
    page = page_of(family.asks.ops[0].schema.name, pages)
    lines = [
        f"# {heading_of(family, pages)}",
        "",
        f"[{title_of(ROOT / 'docs' / page)}]({page}) has an example, shapes and limits.",
    ]
    module = import_module(str(family.functions))
    for name in names_of(family):
        function = getattr(module, name)
        lines += [
            "",
            f"::: {function.__module__}.{name}",
            "    options:",
            "      show_signature: false",
            "      heading_level: 2",
            "",
        ]
        lines += parameters_table(function)
    return "\n".join(lines) + "\n"


def parameters_table(function: Callable[..., Any]) -> Iterator[str]:
    """Parameters, types and defaults of a function, and the type that it returns."""
    signature = inspect.signature(function)
    yield from ("| parameter | type | default |", "| --- | --- | --- |")
    for parameter in signature.parameters.values():
        default = "" if parameter.default is inspect.Parameter.empty else f"`{parameter.default!r}`"
        only = ", by name" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else ""
        yield f"| `{parameter.name}`{only} | {_type_of(parameter.annotation)} | {default} |"
    yield f"| returns | {_type_of(signature.return_annotation)} | |"


def _type_of(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return f"`{text.replace('|', 'or').replace('torch.Tensor', 'Tensor')}`"


def names_in(module: str, listed: str) -> list[str]:
    """The names that a page lists of a module, or all that it offers."""
    return list(import_module(module).__all__) if listed == "all" else listed.split(", ")


def shown(module: str, names: Sequence[str] = ()) -> str:
    """The lines for mkdocstrings: show a module's public names, or those that it takes from others."""
    options = ["show_root_heading: false", "heading_level: 3", "show_root_toc_entry: false"]
    if names:
        options.append(f"members: [{', '.join(names)}]")
    return "\n      ".join([f"::: {module}\n    options:", *options]) + "\n"

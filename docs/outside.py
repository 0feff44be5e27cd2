"""
A hook of mkdocs: let pages link to files of the checkout outside of docs/.

On GitHub ``../deploy/nginx.conf`` is right as it stands. A site has nothing above its first page,
so each such file becomes a file of the site, and the link leads there.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)\)")
FOLDER = "checkout"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that pages link to."""
    root = Path(config.config_file_path or "").parent
    texts = [file.content_string for file in files.documentation_pages()]
    for name in sorted({name for text in texts for name in OUTSIDE.findall(text)}):
        # As text, so that a browser shows it, and mkdocs does not take the README for a page.
        content = (root / name).read_text(encoding="utf-8")
        files.append(File.generated(config, f"{FOLDER}/{name}.txt", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the links lead to them."""
    return OUTSIDE.sub(rf"]({FOLDER}/\1.txt)", markdown)

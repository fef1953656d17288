"""The pages: their blocks can be run or say why not, their links lead somewhere."""

import ast
import re

import pages
import pytest

ALL = pages.pages()
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.M | re.S)


def anchors(text):
    """What GitHub and the site make of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", CODE.sub("", text), re.M)
    kept = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.strip().replace(" ", "-") for title in kept}


@pytest.mark.parametrize("page", ALL, ids=str)
def test_internal_links_lead_somewhere(page):
    text = (pages.ROOT / page).read_text(encoding="utf-8")
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (pages.ROOT / page).parent / path if path else pages.ROOT / page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("page", ALL, ids=str)
def test_blocks_name_their_language_and_can_be_read(page):
    for block in pages.blocks(page):
        where = f"{page}:{block.line}"
        assert block.language in (*pages.RUN, *pages.TEXT), where
        if block.language == "python":
            ast.parse(block.text, filename=where)


def test_every_smaller_size_is_there_to_be_made_smaller():
    texts = [one.text for page in ALL for one in pages.blocks(page) if not one.reason]
    for size in pages.SMALLER:
        assert any(re.search(size, text) for text in texts), size


def test_a_block_that_is_not_run_says_why(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "*Not run here: it ends the world.*\n\n```sh\nend\n```\n\n```sh\nls # -a\n```\n"
    )
    assert [one.reason for one in pages.blocks(page)] == ["it ends the world.", None]
    assert pages.commands(pages.to_run(page, "sh")) == [["ls"]]


@pytest.mark.parametrize("page", ["README.md", "docs/keep.md"])
def test_python_blocks_run_as_a_script(page, tmp_path):
    result = pages.run_script(page, tmp_path)
    assert result.returncode == 0, result.stderr

#!/usr/bin/env python3
"""Copies the documents of a package. Links to files that it does not hold become absolute.

usage: docs.py FOLDER    (below the repository's root; FOLDER is made anew)

Why here: in the repository a page may link to any file; in a package most of them are missing. Each relative link is resolved: to
a file of the package it stays, to another file of the repository it becomes that file's page in the forge at this version's tag.
Must stay true: a link that leads to no file at all ends the run with status 1, so that no package has one.
"""
import os
import re
import shutil
import sys

PAGES = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
KINDS = (".md", ".svg", ".png", ".toml", ".gif", ".webp")
LINK = re.compile(r"(\]\()([^)\s]+)((?:\s+\"[^\"]*\")?\))|((?:src|srcset|href)=\")([^\"]+)(\")")


def manifest():
    text = open("Cargo.toml", encoding="utf-8").read()
    found = [re.search(rf'^{key} = "(.*)"', text, re.M)[1] for key in ("version", "repository")]
    return tuple(found)


def documents():
    """Paths of the package's documents, as in the repository."""
    found = [page for page in PAGES if os.path.exists(page)]
    for folder, _, names in os.walk("docs"):
        found += [os.path.join(folder, name) for name in names if name.endswith(KINDS)]
    return sorted(set(found) - {"docs/book.toml"})


def resolved(page, link, kept, base):
    """What a link of a page is in the package; None where it leads nowhere."""
    if re.match(r"[a-z][a-z0-9+.-]*:|#|//", link):
        return link
    path, mark, anchor = link.partition("#")
    target = os.path.normpath(os.path.join(os.path.dirname(page), path))
    if target in kept or any(one.startswith(target + "/") for one in kept):
        return link
    if target.startswith("..") or not os.path.exists(target):
        return None
    kind = "tree" if os.path.isdir(target) else "blob"
    return f"{base}/{kind}/{VERSION_TAG}/{target}{mark}{anchor}"


def rewritten(page, text, kept, base, dead):
    def replace(match):
        before, link, after = (match[1], match[2], match[3]) if match[2] else (match[4], match[5], match[6])
        there = resolved(page, link, kept, base)
        if there is None:
            dead.append(f"{page}: {link}")
            return match[0]
        return before + there + after

    # Blocks and spans of code are no links.
    parts = re.split(r"(^```.*?^```|`[^`\n]*`)", text, flags=re.S | re.M)
    return "".join(part if at % 2 else LINK.sub(replace, part) for at, part in enumerate(parts))


if len(sys.argv) != 2:
    sys.exit(__doc__)
out = os.path.abspath(sys.argv[1])
os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
version, repository = manifest()
VERSION_TAG = f"v{version}"
shutil.rmtree(out, ignore_errors=True)
kept, dead = set(documents()), []
for page in sorted(kept):
    to = os.path.join(out, page)
    os.makedirs(os.path.dirname(to), exist_ok=True)
    if page.endswith(".md"):
        text = rewritten(page, open(page, encoding="utf-8").read(), kept, repository, dead)
        with open(to, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        shutil.copyfile(page, to)
if dead:
    sys.exit("docs: dead links:\n" + "\n".join(dead))
print(f"docs: {len(kept)} files in {out}", file=sys.stderr)

//! docs/glossary.md: every term is used, our own words are in it, and pages link their first use.
//!
//! Why here: a reader searches for a word that only this project uses, and finds it nowhere else.

use super::english::{blocks, has_word, without_code};
use super::repository::files;
use std::collections::BTreeSet;

/// Words with a meaning of our own. A page that uses one in its text links it.
const OURS: [&str; 14] = [
    "arena",
    "engine",
    "frame",
    "grain",
    "inner file system",
    "local store",
    "off-load",
    "overlay",
    "pool",
    "remote image",
    "session",
    "sidecar file",
    "supervisor",
    "thin image",
];

/// Pages that link: those of users, and the reference pages behind them. Pages of one task, as of
/// the installation, have no words to look up.
fn links_terms(name: &str) -> bool {
    let Some(page) = name.strip_prefix("docs/") else {
        return false;
    };
    let is_apart = [
        "SUMMARY.md",
        "bibliography.md",
        "commands.md",
        "glossary.md",
        "install.md",
        "operate.md",
        "release.md",
        "rfc-requirements.md",
        "trace.md",
        "ui.md",
    ];
    let is_reference = !page.contains('/') && !is_apart.contains(&page);
    page.ends_with(".md")
        && (is_reference || page.starts_with("users/") || page.starts_with("start/"))
}

/// The glossary's terms, as their headings spell them.
fn terms() -> BTreeSet<String> {
    let text = &files()["docs/glossary.md"];
    let heads = text.lines().filter_map(|line| line.strip_prefix("### "));
    heads.map(str::to_owned).collect()
}

/// True if the text has the term, or its plural.
fn uses(text: &str, term: &str) -> bool {
    has_word(text, term) || has_word(text, &format!("{term}s"))
}

/// The text of a page without tables, code and headings, in small letters.
fn running_text(page: &str) -> String {
    let blocks = blocks(page).into_iter().map(|(_, block)| block);
    let kept = blocks.filter(|block| !block.starts_with('|'));
    let kept = kept.map(|block| without_code(&block).to_lowercase());
    kept.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_term_is_used_somewhere() {
    let pages = files().iter().filter(|(name, _)| {
        name.ends_with(".md") && !name.starts_with("target/") && *name != "docs/glossary.md"
    });
    let text = pages.map(|(_, text)| text.to_lowercase().replace('\n', " "));
    let text: Vec<String> = text.collect();
    let terms = terms();
    let unused = terms
        .iter()
        .filter(|term| !text.iter().any(|text| uses(text, &term.to_lowercase())));
    let unused: Vec<_> = unused.collect();
    assert!(unused.is_empty(), "no page uses {unused:?}");
    assert!(terms.len() > 50, "only {} terms were found", terms.len());
}

#[test]
fn our_own_words_are_in_it() {
    let terms = terms();
    for word in OURS {
        assert!(terms.contains(word), "the glossary has no `{word}`");
    }
}

#[test]
fn pages_link_our_own_words() {
    let mut found = Vec::new();
    let mut checked = 0;
    for (name, text) in files().iter().filter(|(name, _)| links_terms(name)) {
        let running = running_text(text);
        for word in OURS.iter().filter(|word| uses(&running, word)) {
            checked += 1;
            let anchor = format!("glossary.md#{}", word.replace(' ', "-"));
            if !text.contains(&anchor) {
                found.push(format!("{name}: `{word}` is not linked to {anchor}"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(checked > 40, "only {checked} uses were found");
}

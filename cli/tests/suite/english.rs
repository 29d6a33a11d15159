//! The pages in plain English: lengths of sentences and tables, and words that a reader of the
//! field would not look for.
//!
//! Why here: a page grows by a clause a time, and only a count notices. Must stay true: a link
//! counts as its text, a code span as its words; code blocks, headings and comments count nothing.
//!
//! docs/glossary.md: every term is used, our own words are in it, and pages link their first use.
//!
//! Why here: a reader searches for a word that only this project uses, and finds it nowhere else.

use std::collections::BTreeSet;

use super::repository::files;

/// Limits of one group of pages.
struct Limits {
    /// Most words of a page's mean sentence.
    mean_words_max: f64,
    /// Most words of any sentence.
    sentence_words_max: usize,
    /// Most words of a row of a table.
    row_words_max: usize,
}

/// Pages that a newcomer reads.
const USERS: Limits = Limits {
    mean_words_max: 16.0,
    sentence_words_max: 33,
    row_words_max: 50,
};

/// Reference pages, and the READMEs of folders and crates.
const REFERENCE: Limits = Limits {
    mean_words_max: 18.0,
    sentence_words_max: 40,
    row_words_max: 120,
};

/// Pages of docs/ that [`USERS`] holds for, by how their names begin.
const USERS_PAGES: [&str; 11] = [
    "start",
    "users/",
    "limits/",
    "benchmarks.md",
    "bibliography.md",
    "glossary.md",
    "install.md",
    "operate.md",
    "trace.md",
    "troubleshooting.md",
    "ui.md",
];

/// Records of what was measured or changed, and standards line by line.
const RECORDS: [&str; 4] = [
    "CHANGELOG.md",
    "docs/results/",
    "docs/rfc-requirements.md",
    "target/",
];

/// Words of one author's dialect, and the field's in their place.
const DIALECT: [(&str, &str); 12] = [
    ("who", "that, callers, users"),
    ("nobody", "no process, no user"),
    ("told", "passed to, reported"),
    ("beside", "next to, compared with"),
    ("so many", "that number of"),
    ("stranger", "other users"),
    ("strangers", "other users"),
    ("whoever", "a process that"),
    ("lets go of", "releases"),
    ("is heard of", "arrives"),
    ("good for an hour", "valid for an hour"),
    ("which is why", "a sentence of its own"),
];

/// A page's paragraphs, items and rows of tables, each with the line that it begins in. Links are
/// their texts; comments stay.
pub(super) fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (at, line) in text.lines().enumerate() {
        let bare = line.trim();
        if bare.starts_with("```") {
            is_code = !is_code;
            is_open = false;
            continue;
        }
        if is_code {
            continue;
        }
        let is_row = bare.starts_with('|');
        let is_apart = bare.is_empty() || bare.starts_with('#') || is_row;
        let number = bare.split_once(". ").map_or("", |(number, _)| number);
        let is_item = bare.starts_with("- ")
            || bare.starts_with("* ")
            || (!number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()));
        let begins = !is_apart && (is_item || !is_open);
        if is_row || begins {
            found.push((at + 1, bare.to_owned()));
        } else if !is_apart {
            let (_, last) = found.last_mut().expect("a block is open");
            last.push(' ');
            last.push_str(bare);
        }
        is_open = !is_apart;
    }
    found
}

/// The text with each link or picture as its text, and without comments.
fn plain(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("<!--") {
        kept.push_str(&rest[..at]);
        rest = rest[at..].split_once("-->").map_or("", |(_, rest)| rest);
    }
    kept.push_str(rest);
    let mut out = String::new();
    let mut rest = kept.as_str();
    while let Some(at) = rest.find("](") {
        out.push_str(&rest[..at]);
        rest = rest[at..].split_once(')').map_or("", |(_, rest)| rest);
    }
    out.push_str(rest);
    out.replace(['[', ']'], "")
}

/// Words that begin with a letter or a digit.
pub(super) fn words(text: &str) -> usize {
    let is_part = |it: char| it.is_alphanumeric() || "_'./+-".contains(it);
    let parts = text.split(|it| !is_part(it));
    parts
        .filter(|part| part.chars().any(char::is_alphanumeric))
        .count()
}

/// The sentences of a block: one ends where a capital, code or emphasis follows its full stop.
fn sentences(block: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    let bytes = block.as_bytes();
    for at in 0..bytes.len().saturating_sub(2) {
        let next = bytes[at + 2];
        let begins = next.is_ascii_uppercase() || next == b'`' || next == b'*';
        if matches!(bytes[at], b'.' | b'!' | b'?') && bytes[at + 1] == b' ' && begins {
            found.push(&block[start..=at]);
            start = at + 2;
        }
    }
    found.push(&block[start..]);
    found
}

/// True for a row of a table.
fn is_row(block: &str) -> bool {
    block.starts_with('|')
}

/// Complaints about one page.
fn judged(name: &str, text: &str, limits: &Limits) -> Vec<String> {
    let mut found = Vec::new();
    let mut counts = Vec::new();
    for (line, block) in blocks(text) {
        let block = plain(&block);
        if is_row(&block) {
            let count = words(&block);
            if count > limits.row_words_max {
                found.push(format!("{name}:{line}: a row of {count} words"));
            }
            continue;
        }
        for sentence in sentences(&block) {
            let count = words(sentence);
            if count > limits.sentence_words_max {
                found.push(format!("{name}:{line}: {count} words: {sentence}"));
            }
            // Shorter ones are labels of items.
            if count >= 4 {
                counts.push(count);
            }
        }
    }
    let mean = counts.iter().sum::<usize>() as f64 / counts.len().max(1) as f64;
    // Of three sentences a mean says nothing that the longest does not.
    if counts.len() > 3 && mean > limits.mean_words_max {
        found.push(format!("{name}: {mean:.1} words a sentence"));
    }
    found
}

/// True if `word` stands in the text as a word of its own. Both are in small letters.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let joins = |it: char| it.is_alphanumeric() || it == '_' || it == '-';
        let before = text[..at].chars().next_back().is_some_and(joins);
        let after = text[at + word.len()..].chars().next().is_some_and(joins);
        !before && !after
    })
}

/// A block without its code spans, whose words are names.
pub(super) fn without_code(block: &str) -> String {
    let parts = block.split('`').enumerate();
    parts
        .filter_map(|(at, part)| (at % 2 == 0).then_some(part))
        .collect()
}

fn pages() -> impl Iterator<Item = (&'static String, &'static String)> {
    files().iter().filter(|(name, _)| {
        let is_record = RECORDS.iter().any(|start| name.starts_with(start));
        name.ends_with(".md") && !is_record
    })
}

#[test]
fn sentences_and_rows_are_short() {
    let mut found = Vec::new();
    let mut checked = 0;
    for (name, text) in pages() {
        let page = name.strip_prefix("docs/").unwrap_or("");
        let is_users = USERS_PAGES.iter().any(|start| page.starts_with(start));
        let limits = match is_users || name == "README.md" {
            true => &USERS,
            false => &REFERENCE,
        };
        found.extend(judged(name, text, limits));
        checked += 1;
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(checked > 80, "only {checked} pages were found");
}

#[test]
fn pages_use_the_fields_words() {
    let mut found = Vec::new();
    for (name, text) in pages() {
        for (line, block) in blocks(text) {
            let block = without_code(&plain(&block)).to_lowercase();
            for (word, better) in DIALECT {
                if has_word(&block, word) {
                    found.push(format!("{name}:{line}: `{word}` (write: {better})"));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A check that cannot fail would show nothing.
#[test]
fn long_sentences_and_rows_are_seen() {
    let long = "word ".repeat(40);
    let page = format!("# A page\n\nShort. A {long}\n\n```\n{long}\n```\n\n| {long}{long} |\n");
    let found = judged("page", &page, &USERS);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(
        sentences("One. Two? `three` e.g. four."),
        ["One.", "Two?", "`three` e.g. four."]
    );
    assert_eq!(plain("a [b](c.md) <!-- test: d -->e"), "a b e");
    assert!(has_word("it, who", "who") && !has_word("whole", "who"));
    assert_eq!(
        blocks("- a\n  b\n- c\n\n1. d\ne\n"),
        [
            (1, "- a b".to_owned()),
            (3, "- c".to_owned()),
            (5, "1. d e".to_owned())
        ]
    );
}

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

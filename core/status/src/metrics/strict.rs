//! A strict parser of OpenMetrics text, for tests.
//!
//! Why here: tests of several crates include this file, so that all products keep to the format.

use std::collections::BTreeSet;

/// The samples of an OpenMetrics text, as name, labels and value; panics where it is invalid.
/// Strict where OpenMetrics is: families follow one another whole, with HELP, TYPE and UNIT before
/// their samples; names end in the unit; counters end in `_total`; the last line is `# EOF`.
pub(crate) fn parse(text: &str) -> Vec<(String, Vec<(String, String)>, f64)> {
    let body = text.strip_suffix("# EOF\n").expect("the end");
    let mut families = BTreeSet::new();
    let (mut family, mut kind) = (String::new(), String::new());
    let mut samples = Vec::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let (word, rest) = rest.split_once(' ').expect(line);
            let (name, rest) = rest.split_once(' ').expect(line);
            if name != family {
                assert!(families.insert(name.to_owned()), "twice: {line}");
                (family, kind) = (name.to_owned(), String::new());
            }
            match word {
                "HELP" => assert!(!rest.trim().is_empty(), "{line}"),
                "TYPE" => {
                    assert!(matches!(rest, "counter" | "gauge"), "{line}");
                    kind = rest.to_owned();
                }
                "UNIT" => assert!(name.ends_with(&format!("_{rest}")), "{line}"),
                _ => panic!("{line}"),
            }
            continue;
        }
        let end = line.find(['{', ' ']).expect(line);
        let (name, rest) = line.split_at(end);
        let of_family = match &*kind {
            "counter" => format!("{family}_total"),
            _ => family.clone(),
        };
        assert_eq!(name, of_family, "{line}");
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        assert!(
            name.chars().all(legal) && name.starts_with("sidecore_"),
            "{line}"
        );
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest),
            None => (Vec::new(), rest),
        };
        let value: f64 = value.strip_prefix(' ').expect(line).parse().expect(line);
        assert!(kind != "counter" || value >= 0.0, "{line}");
        samples.push((name.to_owned(), labels, value));
    }
    samples
}

/// The labels behind a brace, and what follows them.
fn labels(mut rest: &str) -> (Vec<(String, String)>, &str) {
    let mut all: Vec<(String, String)> = Vec::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return (all, rest);
        }
        rest = rest.strip_prefix(',').unwrap_or(rest);
        let (name, after) = rest.split_once("=\"").expect(rest);
        assert!(
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{rest}"
        );
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next().expect(rest) {
                (at, '"') => break at,
                (_, '\\') => match letters.next().expect(rest).1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    c => panic!("escape {c}: {rest}"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(all.iter().all(|(other, _)| other != name), "{rest}");
        all.push((name.to_owned(), value));
        rest = &after[end + 1..];
    }
}

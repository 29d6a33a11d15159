//! Reads docs/commands.md: which commands there are, with which options and JSON keys.
//!
//! Why here: the page is for people, and the tests hold the commands to exactly what it says.
//! Must stay true: a page that cannot be read fails; nothing is skipped in silence.

use std::collections::BTreeSet;

/// One command of the page.
pub(crate) struct Promise {
    /// `block pack`: the words that name it, without `sidecore`.
    pub(crate) name: String,
    /// `--json`, `-o`, ….
    pub(crate) options: Vec<String>,
    /// `rows[].unit`, …: where in the JSON a key stands.
    pub(crate) keys: Vec<String>,
}

impl Promise {
    /// True if the command has this option.
    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|own| own == option)
    }
}

/// Everything that the page promises.
pub(crate) fn read() -> Vec<Promise> {
    let page = include_str!("../../../../docs/commands.md");
    let mut promises: Vec<Promise> = Vec::new();
    for line in page.lines() {
        if let Some(synopsis) = line.strip_prefix("sidecore ") {
            promises.push(parse(synopsis));
        } else if let Some(keys) = line.strip_prefix("  { ") {
            let keys = keys
                .strip_suffix(" }")
                .expect("a line of keys ends with a brace");
            let promise = promises.last_mut().expect("keys stand below their command");
            promise.keys.extend(keys.split(' ').map(str::to_owned));
        }
    }
    let names: BTreeSet<_> = promises.iter().map(|promise| &promise.name).collect();
    assert_eq!(
        names.len(),
        promises.len(),
        "a command stands twice on the page"
    );
    assert!(
        promises.len() > 30,
        "the page has {} commands",
        promises.len()
    );
    promises
}

fn parse(synopsis: &str) -> Promise {
    let words: Vec<&str> = synopsis
        .split_whitespace()
        .map(|word| word.trim_matches(['[', ']']))
        .collect();
    let is_name = |word: &&&str| {
        word.chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    Promise {
        name: words
            .iter()
            .take_while(is_name)
            .copied()
            .collect::<Vec<_>>()
            .join(" "),
        options: words
            .iter()
            .filter(|word| word.starts_with('-') && **word != "--")
            .map(|&word| word.to_owned())
            .collect(),
        keys: Vec::new(),
    }
}

/// Complaint if the JSON lacks `path` (`rows[].unit`) anywhere it should be.
pub(crate) fn missing(json: &serde_json::Value, path: &str) -> Option<String> {
    let (head, rest) = path
        .split_once('.')
        .map_or((path, None), |(head, rest)| (head, Some(rest)));
    let name = head.trim_end_matches("[]");
    let Some(value) = json.get(name) else {
        return Some(format!("no `{name}` in {json}"));
    };
    if name == head {
        return rest.and_then(|rest| missing(value, rest));
    }
    let Some(list) = value.as_array() else {
        return Some(format!("`{name}` is no list in {json}"));
    };
    let rest = rest?;
    if list.is_empty() {
        return Some(format!("`{name}` is empty, so nothing shows its `{rest}`"));
    }
    list.iter().find_map(|item| missing(item, rest))
}

/// Numbers whose key says that they are a quantity, but not in which unit.
pub(crate) fn unitless(json: &serde_json::Value) -> Vec<String> {
    let mut found = Vec::new();
    match json {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                let last = key.rsplit('_').next().unwrap_or(key);
                let bare = QUANTITIES.contains(&last) && value.is_number();
                if bare && !map.contains_key("unit") {
                    found.push(format!("{key}: {value}"));
                }
                found.extend(unitless(value));
            }
        }
        serde_json::Value::Array(list) => found.extend(list.iter().flat_map(unitless)),
        _ => {}
    }
    found
}

/// Last words of a key that would need a unit after them.
const QUANTITIES: [&str; 10] = [
    "time", "duration", "latency", "wall", "wait", "delay", "age", "uptime", "size", "grace",
];

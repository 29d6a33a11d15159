//! A strict parser of OpenMetrics text: the samples, or the first line that breaks the format.
//!
//! Why here: Prometheus takes much that the specification forbids, and its own writer takes odd
//! names and units; tests of several crates hold their metrics against this. Must stay true: it is
//! stricter than the specification where that helps (names begin with `sidecore_`, only counters
//! and gauges). Pure. Source: OpenMetrics 1.0.

use std::collections::BTreeSet;

/// A sample: its name, its labels and its value.
pub type Sample = (String, Vec<(String, String)>, f64);

/// The line that breaks the format, and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not OpenMetrics: {rule}: {line}")]
pub struct Invalid {
    rule: &'static str,
    line: String,
}

/// The samples of an OpenMetrics text.
///
/// Families follow one another whole, with HELP, TYPE and UNIT before their samples; names end in
/// the unit; counters end in `_total` and are not negative; the last line is `# EOF`.
///
/// # Errors
/// The first line that breaks a rule.
pub fn parse(text: &str) -> Result<Vec<Sample>, Invalid> {
    let last = text.lines().last().unwrap_or_default();
    let body = text.strip_suffix("# EOF\n");
    let body = body.ok_or_else(|| invalid("the last line is `# EOF`", last))?;
    let mut parser = Parser::default();
    let mut samples = Vec::new();
    for line in body.lines() {
        match line.strip_prefix("# ") {
            Some(rest) => parser.describe(rest, line)?,
            None => samples.push(parser.sample(line)?),
        }
    }
    Ok(samples)
}

fn invalid(rule: &'static str, line: &str) -> Invalid {
    let line = line.to_owned();
    Invalid { rule, line }
}

fn must(holds: bool, rule: &'static str, line: &str) -> Result<(), Invalid> {
    if holds {
        Ok(())
    } else {
        Err(invalid(rule, line))
    }
}

/// The family that is being read, and those before.
#[derive(Default)]
struct Parser {
    families: BTreeSet<String>,
    family: String,
    kind: String,
}

impl Parser {
    /// A line that describes a family.
    fn describe(&mut self, rest: &str, line: &str) -> Result<(), Invalid> {
        const SHAPE: &str = "`# WORD NAME TEXT` describes a family";
        let (word, rest) = rest.split_once(' ').ok_or_else(|| invalid(SHAPE, line))?;
        let (name, rest) = rest.split_once(' ').ok_or_else(|| invalid(SHAPE, line))?;
        if name != self.family {
            let is_new = self.families.insert(name.to_owned());
            must(is_new, "a family stands in one place", line)?;
            (self.family, self.kind) = (name.to_owned(), String::new());
        }
        match word {
            "HELP" => must(!rest.trim().is_empty(), "HELP has a text", line),
            "TYPE" => {
                rest.clone_into(&mut self.kind);
                let is_known = matches!(rest, "counter" | "gauge");
                must(is_known, "types are counter and gauge", line)
            }
            "UNIT" => {
                let has_unit = name.ends_with(&format!("_{rest}"));
                must(has_unit, "a name ends in its unit", line)
            }
            _ => Err(invalid("the words are HELP, TYPE and UNIT", line)),
        }
    }

    /// A line with a sample of the family.
    fn sample(&self, line: &str) -> Result<Sample, Invalid> {
        const SHAPE: &str = "a sample is NAME{LABELS} VALUE";
        let end = line.find(['{', ' ']).ok_or_else(|| invalid(SHAPE, line))?;
        let (name, rest) = line.split_at(end);
        let of_family = match &*self.kind {
            "counter" => format!("{}_total", self.family),
            _ => self.family.clone(),
        };
        must(
            name == of_family,
            "a sample follows its family's head",
            line,
        )?;
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let is_legal = name.chars().all(legal) && name.starts_with("sidecore_");
        must(is_legal, "names are sidecore_[A-Za-z0-9_:]*", line)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest, line)?,
            None => (Vec::new(), rest),
        };
        let value = value.strip_prefix(' ').and_then(|it| it.parse().ok());
        let value: f64 = value.ok_or_else(|| invalid(SHAPE, line))?;
        let is_possible = self.kind != "counter" || value >= 0.0;
        must(is_possible, "a counter is not negative", line)?;
        Ok((name.to_owned(), labels, value))
    }
}

/// The labels behind a brace, and the text after them.
type Labels = Vec<(String, String)>;

fn labels<'a>(mut rest: &'a str, line: &str) -> Result<(Labels, &'a str), Invalid> {
    let mut all: Vec<(String, String)> = Vec::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((all, rest));
        }
        rest = rest.strip_prefix(',').unwrap_or(rest);
        let named = rest.split_once("=\"");
        let (name, after) = named.ok_or_else(|| invalid("a label is NAME=\"VALUE\"", line))?;
        let is_legal = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        must(is_legal, "names of labels are [a-z_]*", line)?;
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next() {
                Some((at, '"')) => break at,
                Some((_, '\\')) => match letters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, c @ ('\\' | '"'))) => value.push(c),
                    _ => return Err(invalid("the escapes are \\n, \\\\ and \\\"", line)),
                },
                Some((_, c)) => value.push(c),
                None => return Err(invalid("a value ends with a quote", line)),
            }
        };
        let is_new = all.iter().all(|(other, _)| other != name);
        must(is_new, "a label stands once", line)?;
        all.push((name.to_owned(), value));
        rest = &after[end + 1..];
    }
}

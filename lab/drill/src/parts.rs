//! A file of several scripts, each under a line `-- NAME --`, as Go's txtar has it.

/// A script of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'t> {
    /// Its heading's name; empty for what stands before the first heading.
    pub name: &'t str,
    /// Lines of the file before its first line.
    pub lines_before: usize,
    /// Its text, without the heading.
    pub text: &'t str,
}

/// The scripts of a file, in their order. A text without a heading is one script.
///
/// ```
/// let parts = sidecore_net_drill::parts("-- a --\n+0 close(3) = 0\n-- b --\n");
/// let names: Vec<_> = parts.iter().map(|part| (part.name, part.lines_before)).collect();
/// assert_eq!(names, [("a", 1), ("b", 3)]);
/// ```
#[must_use]
pub fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let (mut name, mut lines_before, mut from) = ("", 0, 0);
    let mut end = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if let Some(next) = heading(line) {
            parts.push(Part {
                name,
                lines_before,
                text: &text[from..end],
            });
            (name, lines_before, from) = (next, index + 1, end + line.len());
        }
        end += line.len();
    }
    parts.push(Part {
        name,
        lines_before,
        text: &text[from..],
    });
    // A file that begins with a heading has no script before it.
    if parts.len() > 1 && parts[0].text.trim().is_empty() {
        parts.remove(0);
    }
    parts
}

fn heading(line: &str) -> Option<&str> {
    let name = line.trim_end().strip_prefix("-- ")?.strip_suffix(" --")?;
    Some(name.trim())
}

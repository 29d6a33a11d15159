//! Lines for a terminal of 80 columns.
//!
//! Must stay true: no line is wider than asked for, and nothing of a text is lost. Every character
//! counts as one column.

/// Columns of the screen.
pub(crate) const COLUMNS: usize = 80;

/// The text in lines of `width` columns at most, broken at blanks where it can be.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest: Vec<char> = text.trim_end().chars().collect();
    while rest.len() > width {
        let blank = rest[..=width].iter().rposition(|letter| *letter == ' ');
        // A blank among the first ones is an indent, not a place for a break.
        let (end, next) = match blank.filter(|at| *at > width / 3) {
            Some(at) => (at, at + 1),
            None => (width, width),
        };
        lines.push(rest[..end].iter().collect());
        rest.drain(..next);
    }
    lines.push(rest.into_iter().collect());
    lines
}

/// A shell's line in several, which a shell reads as one.
pub(crate) fn command(line: &str, indent: usize) -> Vec<String> {
    let lines = wrapped(line, COLUMNS - indent - 4);
    let last = lines.len() - 1;
    let each = lines.into_iter().enumerate().map(|(at, line)| {
        let (mark, end) = (
            if at == 0 { "$ " } else { "  " },
            if at == last { "" } else { " \\" },
        );
        format!("{:indent$}{mark}{line}{end}", "")
    });
    each.collect()
}

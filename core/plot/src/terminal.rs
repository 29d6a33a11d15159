//! A terminal session as an animated picture: commands appear, then their output.
//!
//! Why here: a page that shows what a program does needs neither a video nor a script for it. Must
//! stay true: one file without anything fetched; a reader who prefers no motion, or no style
//! sheets, sees all lines at once; the text can be selected and searched.
//! Source: SVG 2; CSS Animations Level 1; Media Queries Level 5.

use crate::xml::escaped;
use std::fmt::Write;

/// One line of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminalLine {
    /// A command, without its prompt.
    Command(String),
    /// A line that it prints.
    Output(String),
}

/// Pixels of a character, across and down.
const CELL: (f64, f64) = (8.4, 20.0);

/// Pixels around the text.
const MARGIN: f64 = 16.0;

/// Seconds until a command is there, and until each line of its output is.
const COMMAND_S: f64 = 1.2;
const OUTPUT_S: f64 = 0.25;

/// Seconds for which the whole session stays before it begins anew. A reader sees it first.
const REST_S: f64 = 5.0;

const STYLE: &str = "\
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#24292f;white-space:pre}
.sheet{fill:#f6f8fa;stroke:#d0d7de}
.prompt{fill:#1a7f37;font-weight:bold}
.out{fill:#57606a}
@media (prefers-color-scheme:dark){text{fill:#e4e6e9}.sheet{fill:#14171b;stroke:#363c44}\
.prompt{fill:#35c596}.out{fill:#9ba2ab}}
";

/// Draws the session as SVG, `columns` characters wide; longer lines are cut with an ellipsis.
/// `label` describes it to readers that cannot see it.
#[must_use]
pub fn terminal(lines: &[TerminalLine], columns: usize, label: &str) -> String {
    let mut at_s = 0.0;
    let starts: Vec<f64> = lines
        .iter()
        .map(|line| {
            at_s += match line {
                TerminalLine::Command(_) => COMMAND_S,
                TerminalLine::Output(_) => OUTPUT_S,
            };
            at_s
        })
        .collect();
    let whole_s = at_s + REST_S;
    let width = as_pixels(columns) * CELL.0 + 2.0 * MARGIN;
    let height = as_pixels(lines.len()) * CELL.1 + 2.0 * MARGIN;
    // Nothing can fail: all writes go to a string.
    let mut svg = format!(
        "<svg role=\"img\" aria-label=\"{}\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" xmlns=\"http://www.w3.org/2000/svg\">\n<style>\n{STYLE}\
         @media (prefers-reduced-motion:no-preference){{\n",
        escaped(label)
    );
    for (index, start_s) in starts.iter().enumerate() {
        let shown = 100.0 * start_s / whole_s;
        let _ = writeln!(
            svg,
            "@keyframes l{index}{{0%,{shown:.1}%{{opacity:0}}{:.1}%,100%{{opacity:1}}}}\
             .l{index}{{animation:l{index} {whole_s:.2}s -{at_s:.2}s infinite}}",
            shown + 0.1
        );
    }
    svg += "}\n</style>\n";
    let _ = writeln!(
        svg,
        "<rect class=\"sheet\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>",
        width - 1.0,
        height - 1.0
    );
    for (index, line) in lines.iter().enumerate() {
        let down = MARGIN + (as_pixels(index) + 0.75) * CELL.1;
        let _ = match line {
            TerminalLine::Command(text) => writeln!(
                svg,
                "<text class=\"l{index}\" x=\"{MARGIN}\" y=\"{down}\">\
                 <tspan class=\"prompt\">$ </tspan>{}</text>",
                escaped(&cut(text, columns.saturating_sub(2)))
            ),
            TerminalLine::Output(text) => writeln!(
                svg,
                "<text class=\"out l{index}\" x=\"{MARGIN}\" y=\"{down}\">{}</text>",
                escaped(&cut(text, columns))
            ),
        };
    }
    svg + "</svg>\n"
}

/// A count as a position; pictures have few lines and columns.
fn as_pixels(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// `text` in at most `columns` characters.
fn cut(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let kept = text.chars().take(columns.saturating_sub(1));
    kept.chain(std::iter::once('…')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_appears_line_by_line_and_is_escaped() {
        let lines = [
            TerminalLine::Command("cat a < b && echo \"c\"".into()),
            TerminalLine::Output("x".repeat(100)),
        ];
        let svg = terminal(&lines, 40, "a & b");
        assert!(svg.starts_with("<svg role=\"img\" aria-label=\"a &amp; b\""));
        assert!(svg.contains("cat a &lt; b &amp;&amp; echo &quot;c&quot;"));
        assert!(svg.contains(&format!("{}…</text>", "x".repeat(39))));
        assert!(svg.contains("prefers-color-scheme:dark"));
        // Each line has its time, the output later; 1.45 s of 6.45 s. It begins with all lines.
        assert!(svg.contains("@keyframes l0{0%,18.6%"), "{svg}");
        assert!(svg.contains("@keyframes l1{0%,22.5%"), "{svg}");
        assert!(svg.contains("animation:l1 6.45s -1.45s infinite"), "{svg}");
    }

    #[test]
    fn an_empty_session_is_an_empty_sheet() {
        let svg = terminal(&[], 10, "");
        assert!(svg.contains("<rect") && !svg.contains("<text"));
    }
}

//! A picture whose colours are its page's.
//!
//! Why here: a page that is dark at night must not show white boxes, and a picture that is drawn
//! once cannot know. Must stay true: the page defines `--ink`, `--ground`, `--rule`, `--grey` and
//! `--line-1` to `--line-5`; text is not touched, only attributes.
//! Source: SVG 2, presentation attributes take any CSS value, `var()` too.

use crate::adaptive::without_style;
use crate::chart::RULE;
use crate::{COLOURS, GREY};
use plotters::prelude::*;

/// `svg` in the form for embedding in a page: as wide as there is room, described by `label` for
/// readers that cannot see it.
#[must_use]
pub fn themed(svg: &str, label: &str) -> String {
    // The page's own style decides.
    let mut out = without_style(svg);
    let mut put = |colour: RGBColor, name: &str| {
        let hex = format!("\"#{:02X}{:02X}{:02X}\"", colour.0, colour.1, colour.2);
        out = out.replace(&hex, &format!("\"var(--{name})\""));
    };
    put(BLACK, "ink");
    put(WHITE, "ground");
    put(RULE, "rule");
    put(GREY, "grey");
    for (index, colour) in COLOURS.into_iter().enumerate() {
        put(colour, &format!("line-{}", index + 1));
    }
    // The size goes, the view box stays.
    let Some((head, body)) = out.split_once('>') else {
        return out;
    };
    let kept = head.split_once("viewBox=").map_or("", |(_, rest)| rest);
    // The one text of a caller's that the drawing library does not escape.
    let label = label
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;");
    format!("<svg role=\"img\" aria-label=\"{label}\" viewBox={kept}>{body}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Mark, Series, chart, picture};

    #[test]
    fn every_colour_is_the_pages_and_text_is_escaped() {
        let series = [Mark::Line, Mark::Dashed, Mark::Crosses].map(|mark| Series {
            name: "<script>&".into(),
            points: vec![(1.0, 2.0), (2.0, 3.0)],
            mark,
            colour: mark as usize,
        });
        let axis = Axis {
            title: "\"#000000\"",
            x: "x",
            y: "y",
            letters: 16,
            by_powers: false,
        };
        let svg = picture((400, 300), |area| chart(area, &axis, &series)).unwrap();
        let out = themed(&svg, "a \"<b>\" & c");
        assert!(!out.contains("<script>"), "{out}");
        assert!(out.starts_with("<svg role=\"img\" aria-label=\"a &quot;&lt;b>&quot; &amp; c\""));
        assert!(out.contains("viewBox=\"0 0 400 300\""), "{out}");
        for attribute in ["fill=\"#", "stroke=\"#"] {
            assert!(!out.contains(attribute), "{attribute} in {out}");
        }
    }
}

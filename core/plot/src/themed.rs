//! A picture whose colours are its page's.
//!
//! Why here: a page that is dark at night must not show white boxes, and a picture that is drawn
//! once cannot know. Must stay true: the page defines `--ink`, `--ground`, `--rule`, `--grey` and
//! `--line-1` to `--line-5`; text is not touched, only attributes.
//! Source: SVG 2, presentation attributes take any CSS value, `var()` too.
//!
//! Files: pages that show pictures of files are dark where their reader is, and a white sheet in
//! them glares. [`adaptive`] makes the colours follow the reader's setting. Must stay true:
//! presentation attributes stay, so that a reader without style sheets has the light picture;
//! [`themed()`] takes the style out again. Source: Media Queries Level 5, `prefers-color-scheme`;
//! SVG 2, a style beats an attribute.

use crate::chart::RULE;
use crate::{COLOURS, GREY};
use plotters::prelude::*;
use std::fmt::Write;

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

/// Colours of dark pictures in the order of [`COLOURS`]: as distinct, on a dark ground.
const DARK_COLOURS: [&str; 5] = ["#56b4e9", "#ff8f45", "#35c596", "#e59bc9", "#b3bac3"];

/// Orange of Okabe and Ito, which some pictures use in addition, and its dark form.
const ORANGE: (RGBColor, &str) = (RGBColor(230, 159, 0), "#ffc04d");

/// `svg` with a style that replaces its colours where the reader prefers dark pages.
pub(crate) fn adaptive(svg: &str) -> String {
    let Some((head, body)) = svg.split_once('>') else {
        return svg.to_owned();
    };
    format!("{head}>\n{}{body}", style())
}

/// `svg` without the style of [`adaptive`].
pub(crate) fn without_style(svg: &str) -> String {
    svg.replacen(&style(), "", 1)
}

/// The style: one rule a colour, for what is filled and for what is drawn.
fn style() -> String {
    let single = [
        (WHITE, "#14171b"),
        (BLACK, "#e4e6e9"),
        (GREY, "#9ba2ab"),
        (RULE, "#363c44"),
        ORANGE,
    ];
    let lines = COLOURS.into_iter().zip(DARK_COLOURS);
    let mut css = String::from("<style>@media (prefers-color-scheme:dark){");
    for (light, dark) in single.into_iter().chain(lines) {
        let RGBColor(red, green, blue) = light;
        for property in ["fill", "stroke"] {
            // A string cannot fail to take text.
            let _ = write!(
                css,
                "[{property}=\"#{red:02x}{green:02x}{blue:02x}\" i]{{{property}:{dark}}}"
            );
        }
    }
    css + "}</style>\n"
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

#[cfg(test)]
mod adaptive_tests {
    use super::*;
    use crate::{picture, text};
    use plotters::style::text_anchor::HPos;

    #[test]
    fn a_picture_follows_its_readers_setting() {
        let svg = picture((100, 50), |area| text(area, "a", (5, 5), 12, HPos::Left)).unwrap();
        let (head, rest) = svg.split_once("<style>").unwrap();
        assert!(head.starts_with("<svg "), "{svg}");
        let (style, drawn) = rest.split_once("</style>").unwrap();
        assert!(style.contains("prefers-color-scheme:dark"));
        assert!(style.contains("[fill=\"#000000\" i]{fill:#e4e6e9}"));
        // The attributes stay, for readers without style sheets.
        assert!(drawn.contains("fill=\"#000000\"") && drawn.contains("fill=\"#FFFFFF\""));
        assert!(!without_style(&svg).contains("style"));
    }
}

//! A picture whose colours follow its reader's dark or light setting.
//!
//! Why here: pages that show pictures of files are dark where their reader is, and a white sheet in
//! them glares. Must stay true: presentation attributes stay, so that a reader without style sheets
//! has the light picture; [`themed()`](crate::themed) takes the style out again.
//! Source: Media Queries Level 5, `prefers-color-scheme`; SVG 2, a style beats an attribute.

use crate::chart::RULE;
use crate::{COLOURS, GREY};
use plotters::prelude::*;
use std::fmt::Write;

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

//! The SVG text of a tree's picture.
//!
//! Must stay true: colours stand in one style sheet alone. Each is first a plain one, for programs
//! that know no more; then the page's variable, as [`crate::themed()`] names it, with the plain one
//! where the page has none.

use super::form::Spot;
use super::{TreeOptions, TreeTheme};
use crate::xml::escaped;
use std::fmt::Write;

/// Classes of drawn elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Branch,
    Leader,
    Bar,
    Name,
    Strong,
    Fair,
    Weak,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Self::Branch => "branch",
            Self::Leader => "leader",
            Self::Bar => "bar",
            Self::Name => "name",
            Self::Strong => "strong",
            Self::Fair => "fair",
            Self::Weak => "weak",
        }
    }
}

pub(super) struct Sheet {
    svg: String,
}

impl Sheet {
    pub(super) fn new(size: [f64; 2], options: &TreeOptions, stroke: f64) -> Self {
        let [width, height] = size.map(f64::ceil);
        let title = escaped(match options.title.as_str() {
            "" => "Phylogenetic tree",
            title => title,
        });
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"phylogeny\" role=\"img\" \
             aria-label=\"{title}\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<title>{title}</title>\n"
        );
        let _ = writeln!(svg, "<style>\n{}</style>", style(options.theme, stroke));
        let _ = writeln!(
            svg,
            "<rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>"
        );
        Self { svg }
    }

    pub(super) fn path(&mut self, class: Class, path: &str) {
        let _ = writeln!(self.svg, "<path class=\"{}\" d=\"{path}\"/>", class.name());
    }

    /// Text that begins at a spot and follows its direction; `by` moves it along and across.
    pub(super) fn text(&mut self, class: Class, spot: Spot, by: [f64; 2], size: f64, text: &str) {
        let end = if spot.turned {
            " text-anchor=\"end\""
        } else {
            ""
        };
        let along = if spot.turned { -by[0] } else { by[0] };
        let _ = writeln!(
            self.svg,
            "<text class=\"{}\"{} x=\"{along:.1}\" y=\"{:.1}\" font-size=\"{size}\"{end}>{}</text>",
            class.name(),
            moved(spot),
            by[1],
            escaped(text)
        );
    }

    /// A support: before its node (`by` is negative, then) or `after` it.
    pub(super) fn support(&mut self, spot: Spot, by: [f64; 2], after: bool, size: f64, text: &str) {
        let end = if after == spot.turned {
            " text-anchor=\"end\""
        } else {
            ""
        };
        let along = if spot.turned { -by[0] } else { by[0] };
        let _ = writeln!(
            self.svg,
            "<text class=\"support\"{} x=\"{along:.1}\" y=\"{:.1}\" \
             font-size=\"{size}\"{end}>{}</text>",
            moved(spot),
            by[1],
            escaped(text)
        );
    }

    /// A dot that shows its value when pointed at.
    pub(super) fn dot(&mut self, class: Class, spot: Spot, radius: f64, text: &str) {
        let _ = writeln!(
            self.svg,
            "<circle class=\"{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\"><title>{}</title>\
             </circle>",
            class.name(),
            spot.x,
            spot.y,
            escaped(text)
        );
    }

    /// A dot of the legend.
    pub(super) fn mark(&mut self, class: Class, at: [f64; 2], radius: f64) {
        let _ = writeln!(
            self.svg,
            "<circle class=\"{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\"/>",
            class.name(),
            at[0],
            at[1]
        );
    }

    /// Upright text of the legend.
    pub(super) fn plain(&mut self, at: [f64; 2], size: f64, centred: bool, text: &str) {
        let middle = if centred {
            " text-anchor=\"middle\""
        } else {
            ""
        };
        let _ = writeln!(
            self.svg,
            "<text class=\"legend\" x=\"{:.1}\" y=\"{:.1}\" font-size=\"{size}\"{middle}>{}</text>",
            at[0],
            at[1],
            escaped(text)
        );
    }

    pub(super) fn end(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

/// The attribute that moves an element to a spot, and turns it.
fn moved(spot: Spot) -> String {
    // The left half of a circle is turned over, so that no name stands on its head.
    let angle = if spot.turned {
        spot.angle - 180.0
    } else {
        spot.angle
    };
    let turn = match angle.abs() < 0.005 {
        true => String::new(),
        false => format!(" rotate({angle:.2})"),
    };
    format!(
        " transform=\"translate({:.1} {:.1}){turn}\"",
        spot.x, spot.y
    )
}

/// The style sheet; only rules of classes in the picture are in it.
fn style(theme: TreeTheme, stroke: f64) -> String {
    let mut css = format!(
        ".phylogeny text{{font-family:Inter,'Helvetica Neue',Helvetica,Arial,'Liberation \
         Sans',sans-serif}}\n\
         .phylogeny path{{fill:none;stroke-width:{stroke};stroke-linecap:round;\
         stroke-linejoin:round}}\n\
         .phylogeny .leader{{stroke-width:{:.2};stroke-dasharray:1 3}}\n\
         .phylogeny circle{{stroke-width:{:.2}}}\n\
         .phylogeny .support{{paint-order:stroke;stroke-width:2.5px;stroke-linejoin:round}}\n",
        0.7 * stroke,
        0.7 * stroke,
    );
    match theme {
        // The page's own scheme decides; a viewer without style queries shows the light one.
        TreeTheme::Auto => {
            css.push_str(&colours(&LIGHT, true));
            let dark = colours(&DARK, true);
            let _ = write!(css, "@media (prefers-color-scheme:dark){{\n{dark}}}\n");
        }
        TreeTheme::Light => css.push_str(&colours(&LIGHT, false)),
        TreeTheme::Dark => css.push_str(&colours(&DARK, false)),
    }
    css
}

/// Colours of a theme.
struct Palette {
    ground: &'static str,
    ink: &'static str,
    /// Of secondary elements.
    grey: &'static str,
    /// Of supports.
    line: &'static str,
}

/// The rules that give colours.
fn colours(palette: &Palette, follow: bool) -> String {
    let Palette {
        ground,
        ink,
        grey,
        line,
    } = palette;
    let rules = [
        (".ground", "fill", "ground", ground),
        (".branch", "stroke", "ink", ink),
        (".bar", "stroke", "ink", ink),
        (".leader", "stroke", "grey", grey),
        (".name", "fill", "ink", ink),
        (".legend", "fill", "ink", ink),
        (".support", "fill", "line-1", line),
        (".support", "stroke", "ground", ground),
        (".strong", "fill", "line-1", line),
        (".strong", "stroke", "ground", ground),
        (".fair", "fill", "grey", grey),
        (".fair", "stroke", "ground", ground),
        (".weak", "fill", "ground", ground),
        (".weak", "stroke", "grey", grey),
    ];
    let mut css = String::new();
    for (class, property, variable, plain) in rules {
        let _ = write!(css, ".phylogeny {class}{{{property}:{plain}");
        // Pages may set their own colours by CSS variables of these names.
        if follow {
            let _ = write!(css, ";{property}:var(--{variable},{plain})");
        }
        css.push_str("}\n");
    }
    css
}

const LIGHT: Palette = Palette {
    ground: "#ffffff",
    ink: "#1f2328",
    grey: "#9aa0a6",
    line: "#0072b2",
};
const DARK: Palette = Palette {
    ground: "#15181c",
    ink: "#e3e6ea",
    grey: "#7d848c",
    line: "#6cb6ec",
};

//! Trees as pictures: rectangular and circular, with names, supports and a scale bar.
//!
//! Top-down: [`tree_picture`] takes nodes and says nothing of files; `layout` gives each node a
//! depth and a row; `form` places these on the sheet, as rows or around a circle; `sheet` writes
//! SVG. Rows keep a height that can be read: a large tree makes a large picture, not small letters.
//! Why here: the charts' drawing library turns text by quarters and counts whole pixels; names
//! around a circle need neither. Must stay true: pure; all text is escaped. Every colour is its
//! page's where the page names one (as in [`crate::themed()`]), else that of the reader's light or
//! dark mode.
//! Sources: own; the layout is the usual one of rectangular and circular phylograms.
//!
//! ```
//! use sidecore_plot::{TreeForm, TreeNode, TreeOptions, tree_picture};
//!
//! let node = |parent, label: &str| TreeNode {
//!     parent,
//!     label: label.into(),
//!     length: Some(0.1),
//! };
//! let nodes = [node(None, ""), node(Some(0), "ape"), node(Some(0), "98"), node(Some(2), "bat"),
//!     node(Some(2), "cow")];
//! let options = TreeOptions { form: TreeForm::Circular, ..TreeOptions::default() };
//! let svg = tree_picture(&nodes, &options);
//! assert!(svg.starts_with("<svg ") && svg.contains(">ape</text>") && svg.contains(">98</text>"));
//! ```

mod form;
mod layout;
mod sheet;

use form::Form;
use layout::Layout;
use letters::width;
use sheet::{Class, Sheet};

/// A node of a tree to be drawn. Parents stand before their children; the first is the root.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeNode {
    /// The node above; the root has none.
    pub parent: Option<usize>,
    /// Name of a tip; support (or name) of an inner node; empty where there is none.
    pub label: String,
    /// Length of the branch above; below 0 it is drawn as 0.
    pub length: Option<f64>,
}

/// Shapes of a tree's picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TreeForm {
    /// From left to right, a row for each tip.
    #[default]
    Rectangular,
    /// Around a circle, the root in its middle.
    Circular,
}

impl TreeForm {
    /// All of them by name, with a line about each.
    #[rustfmt::skip] // a line each
    pub const NAMED: [(&str, &str, Self); 2] = [
        ("rectangular", "From left to right, a row for each tip", Self::Rectangular),
        ("circular", "Around a circle", Self::Circular),
    ];
}

/// Colours of a picture that stands alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TreeTheme {
    /// The reader's: light, or dark where the reader's programs are.
    #[default]
    Auto,
    /// Dark lines on white.
    Light,
    /// Light lines on black.
    Dark,
}

impl TreeTheme {
    /// All of them by name, with a line about each.
    #[rustfmt::skip] // a line each
    pub const NAMED: [(&str, &str, Self); 3] = [
        ("auto", "Light, or dark where the reader's programs are", Self::Auto),
        ("light", "Dark lines on white", Self::Light),
        ("dark", "Light lines on black", Self::Dark),
    ];
}

/// Options of a tree's picture.
#[derive(Debug, Clone, Default)]
pub struct TreeOptions {
    /// Its shape.
    pub form: TreeForm,
    /// Its colours.
    pub theme: TreeTheme,
    /// True: all tips end alike, lengths are not shown. So it is where a branch has no length.
    pub cladogram: bool,
    /// True: children stand in the nodes' order, not the smaller subtrees first.
    pub keep_order: bool,
    /// Accessible description of the picture, and its title in browsers.
    pub title: String,
}

/// Draws a tree as SVG.
///
/// # Panics
/// When there is no node, or a parent stands behind its child.
#[must_use]
pub fn tree_picture(nodes: &[TreeNode], options: &TreeOptions) -> String {
    let layout = Layout::new(nodes, options);
    let measure = Measure::new(nodes, &layout);
    let form = Form::new(options.form, &layout, &measure);
    let mut sheet = Sheet::new(form.size(), options, measure.stroke);
    branches(&mut sheet, &layout, &form);
    names(&mut sheet, nodes, &layout, &form, &measure);
    let marks = supports(&mut sheet, nodes, &layout, &form, &measure);
    legend(&mut sheet, &layout, &form, &measure, marks);
    sheet.end()
}

/// Sizes in pixels; they depend on how many tips there are.
#[derive(Debug)]
struct Measure {
    /// Height of a row.
    row: f64,
    /// Height of letters of names, and of supports.
    letters: f64,
    small: f64,
    /// Width of lines.
    stroke: f64,
    /// Width of the longest name.
    names: f64,
    /// True where supports are marked by dots, and written only where there is room.
    dots: bool,
}

impl Measure {
    fn new(nodes: &[TreeNode], layout: &Layout) -> Self {
        let (row, letters, small, stroke) = match layout.tips {
            0..=24 => (28.0, 15.0, 11.0, 1.8),
            25..=80 => (21.0, 13.0, 9.5, 1.5),
            81..=200 => (16.0, 11.5, 8.0, 1.3),
            _ => (13.0, 10.0, 7.0, 1.1),
        };
        let tips = (0..nodes.len()).filter(|&node| layout.children[node].is_empty());
        let names = tips.map(|tip| width(&shown(&nodes[tip].label), letters));
        Self {
            row,
            letters,
            small,
            stroke,
            names: names.fold(0.0, f64::max),
            dots: layout.tips > 80,
        }
    }
}

/// A name as it is shown: Newick's underscores are blanks.
fn shown(label: &str) -> String {
    label.replace('_', " ")
}

fn branches(sheet: &mut Sheet, layout: &Layout, form: &Form) {
    let mut path = String::new();
    for (node, &parent) in layout.parents.iter().enumerate() {
        match parent {
            Some(parent) => form.branch(&mut path, layout, parent, node),
            // A rooted tree shows its root.
            None if layout.children[node].len() == 2 => form.root(&mut path, layout, node),
            None => {}
        }
    }
    sheet.path(Class::Branch, &path);
}

fn names(sheet: &mut Sheet, nodes: &[TreeNode], layout: &Layout, form: &Form, measure: &Measure) {
    let mut leaders = String::new();
    for (node, own) in nodes.iter().enumerate() {
        if !layout.children[node].is_empty() {
            continue;
        }
        // One path for all leaders: a large tree has thousands.
        form.leader(&mut leaders, layout, node);
        let spot = form.name(layout, node);
        let up = 0.35 * measure.letters;
        sheet.text(
            Class::Name,
            spot,
            [0.0, up],
            measure.letters,
            &shown(&own.label),
        );
    }
    if !leaders.is_empty() {
        sheet.path(Class::Leader, &leaders);
    }
}

/// Labels of inner nodes; true where some have a dot.
fn supports(
    sheet: &mut Sheet,
    nodes: &[TreeNode],
    layout: &Layout,
    form: &Form,
    measure: &Measure,
) -> Option<f64> {
    let inner = || (1..nodes.len()).filter(|&node| !layout.children[node].is_empty());
    let values = inner().filter_map(|node| support(&nodes[node].label));
    // Shares where none is above 1, else per cent.
    let whole = match values.fold(0.0, f64::max) {
        most if most <= 1.0 => 1.0,
        _ => 100.0,
    };
    let mut any = None;
    for node in inner() {
        let text = label(&nodes[node].label);
        if text.is_empty() {
            continue;
        }
        let spot = form.spot(layout, node);
        if measure.dots
            && let Some(value) = support(&nodes[node].label)
        {
            let class = match value / whole {
                share if share >= STRONG => Class::Strong,
                share if share >= FAIR => Class::Fair,
                _ => Class::Weak,
            };
            sheet.dot(class, spot, 0.2 * measure.small + 0.8, &text);
            any = Some(whole);
        }
        // A value stands above its branch, else behind the fork, else only as a dot.
        let room = width(&text, measure.small) + 5.0;
        let before = form.length(layout, node);
        let behind = layout.children[node]
            .iter()
            .map(|&child| form.length(layout, child));
        let behind = behind.fold(f64::INFINITY, f64::min);
        // A fork of three has a branch where the text would stand.
        let open = layout.children[node].len() == 2;
        let gap = if measure.dots { 4.5 } else { 4.0 };
        let above = [-gap, -0.3 * measure.small];
        let within = [gap, 0.35 * measure.small];
        let (at, after) = match (before >= room, open && behind >= room) {
            (true, _) => (above, false),
            (false, true) => (within, true),
            // Where there is no room at all a dot has to do; without dots it stands on lines.
            (false, false) if measure.dots => continue,
            (false, false) => (above, false),
        };
        sheet.support(spot, at, after, measure.small, &text);
    }
    any
}

/// The scale bar, and the meaning of dots.
fn legend(sheet: &mut Sheet, layout: &Layout, form: &Form, measure: &Measure, dots: Option<f64>) {
    let [left, y] = form.legend();
    let letters = measure.letters.max(11.0);
    let mut x = left;
    if let Some(depth) = layout.length {
        let scale = form.scale() / depth;
        // A round length near the wanted size, rather than a bar of a fixed size.
        let length = round_length(BAR / scale);
        let end = x + length * scale;
        let tick = 3.0;
        let path = format!(
            "M{x:.1} {:.1}v{:.1}m0 {:.1}H{end:.1}m0 {:.1}v{:.1}",
            y - tick,
            2.0 * tick,
            -tick,
            -tick,
            2.0 * tick
        );
        sheet.path(Class::Bar, &path);
        let middle = 0.5 * (x + end);
        sheet.plain(
            [middle, y + 4.0 + letters],
            letters,
            true,
            &format!("{length}"),
        );
        x = end + 36.0;
    }
    if let Some(whole) = dots {
        for (class, text) in [
            (Class::Strong, format!("≥ {}", STRONG * whole)),
            (Class::Fair, format!("≥ {}", FAIR * whole)),
            (Class::Weak, format!("< {}", FAIR * whole)),
        ] {
            sheet.mark(class, [x, y], 4.0);
            sheet.plain([x + 9.0, y + 0.35 * letters], letters, false, &text);
            x += 9.0 + width(&text, letters) + 20.0;
        }
    }
}

/// The support that a label has, the first where it has several.
fn support(label: &str) -> Option<f64> {
    // Several values (`95/0.98`) are of several methods; the first one decides the dot.
    let first = label.split('/').next()?;
    first
        .trim()
        .parse()
        .ok()
        .filter(|value: &f64| value.is_finite())
}

/// A label as it is shown: numbers with at most two decimals.
fn label(text: &str) -> String {
    let short = |part: &str| match part.trim().parse::<f64>() {
        Ok(value) if part.split_once('.').is_some_and(|(_, rest)| rest.len() > 2) => {
            format!("{}", (100.0 * value).round() / 100.0)
        }
        _ => part.to_owned(),
    };
    let parts: Vec<String> = text.split('/').map(short).collect();
    parts.join("/")
}

/// The next lower of 1, 2 and 5 times a power of ten.
fn round_length(length: f64) -> f64 {
    let power = length.log10().floor();
    let steps = [5.0, 2.0, 1.0].into_iter();
    let fits = |step: &f64| step * 10f64.powf(power) <= length * (1.0 + 1e-9);
    let step = { steps }.find(fits).unwrap_or(1.0);
    // Powers below 0 by division: 0.2, not 0.2000001.
    match power {
        power if power < 0.0 => step / 10f64.powf(-power),
        power => step * 10f64.powf(power),
    }
}

/// About how many pixels long the scale bar is at most.
const BAR: f64 = 150.0;
/// Supports from which a branch counts as sure, and as likely.
const STRONG: f64 = 0.95;
const FAIR: f64 = 0.70;

mod letters {
    //! Widths of letters, near enough to keep room for a name.
    //!
    //! Source: the advance widths of Helvetica and its likenesses, in classes.

    /// Width of a text in a sans-serif font of this size, in the size's unit; a little too wide
    /// rather than too narrow.
    pub(super) fn width(text: &str, size: f64) -> f64 {
        let each = text.chars().map(|letter| match letter {
            'i' | 'j' | 'l' | '\'' | '|' => 0.25,
            ' ' | '.' | ',' | ':' | ';' | '!' | 'I' | 'f' | 't' | '/' => 0.31,
            '-' | '(' | ')' | '[' | ']' | 'r' => 0.36,
            'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.92,
            'A'..='Z' | '<' | '>' | '≥' => 0.72,
            'a'..='z' | '0'..='9' => 0.58,
            // Scripts with wide letters.
            _ if u32::from(letter) > 0x2E80 => 1.0,
            _ => 0.65,
        });
        size * each.sum::<f64>()
    }
}

#[cfg(test)]
mod tests;

//! Places of depths and rows on the sheet: rows from left to right, or around a circle.

use super::layout::Layout;
use super::{Measure, TreeForm};
use std::f64::consts::{PI, TAU};
use std::fmt::Write;

/// A place and the direction in which the tree grows there, in degrees; text that would stand on
/// its head is turned over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) angle: f64,
    pub(super) turned: bool,
}

#[derive(Debug)]
pub(super) struct Form {
    size: [f64; 2],
    shape: Shape,
    /// Pixels from depth 0 to depth 1.
    scale: f64,
}

#[derive(Debug)]
enum Shape {
    Rows {
        left: f64,
        top: f64,
        row: f64,
        bottom: f64,
    },
    Circle {
        centre: [f64; 2],
        inner: f64,
        /// Angle between two tips, in radians.
        step: f64,
        bottom: f64,
    },
}

impl Form {
    pub(super) fn new(form: TreeForm, layout: &Layout, measure: &Measure) -> Self {
        let names = measure.names + NAME_GAP;
        match form {
            TreeForm::Rectangular => {
                let (left, top) = (MARGIN + ROOT, MARGIN + 0.5 * measure.row);
                let scale = match layout.tips {
                    0..=24 => 480.0,
                    25..=80 => 600.0,
                    _ => 760.0,
                };
                // Names are centred on their rows: half a row is left above and below.
                let bottom = top + measure.row * (layout.tips as f64 - 0.5);
                Self {
                    size: [left + scale + names + MARGIN, bottom + LEGEND + MARGIN],
                    shape: Shape::Rows {
                        left,
                        top,
                        row: measure.row,
                        bottom,
                    },
                    scale,
                }
            }
            TreeForm::Circular => {
                // A gap shows where the names begin.
                let step = (1.0 - OPEN) * TAU / layout.tips as f64;
                // Names at the rim are as far apart as rows.
                let rim = (measure.row * 0.95 / step).max(RIM_MIN);
                // The root's branches need room: at radius 0 they would lie on one another.
                let inner = 0.07 * rim;
                let radius = rim + names + MARGIN;
                Self {
                    size: [2.0 * radius, 2.0 * radius + LEGEND],
                    shape: Shape::Circle {
                        centre: [radius, radius],
                        inner,
                        step,
                        bottom: 2.0 * radius,
                    },
                    scale: rim - inner,
                }
            }
        }
    }

    pub(super) fn size(&self) -> [f64; 2] {
        self.size
    }

    pub(super) fn scale(&self) -> f64 {
        self.scale
    }

    /// Left end and height of the scale bar.
    pub(super) fn legend(&self) -> [f64; 2] {
        match self.shape {
            Shape::Rows { left, bottom, .. } => [left, bottom + 0.45 * LEGEND],
            Shape::Circle { bottom, .. } => [MARGIN, bottom + 0.3 * LEGEND],
        }
    }

    fn at(&self, depth: f64, row: f64) -> Spot {
        match self.shape {
            Shape::Rows {
                left,
                top,
                row: height,
                ..
            } => Spot {
                x: left + self.scale * depth,
                y: top + height * row,
                angle: 0.0,
                turned: false,
            },
            Shape::Circle {
                centre,
                inner,
                step,
                ..
            } => {
                // The gap is at the top, so that the first name and the last stand upright.
                let angle = -0.5 * PI + OPEN * PI + step * (row + 0.5);
                let radius = inner + self.scale * depth;
                Spot {
                    x: centre[0] + radius * angle.cos(),
                    y: centre[1] + radius * angle.sin(),
                    angle: angle.to_degrees(),
                    turned: angle.cos() < -1e-9,
                }
            }
        }
    }

    pub(super) fn spot(&self, layout: &Layout, node: usize) -> Spot {
        self.at(layout.depth[node], layout.row[node])
    }

    /// Pixels of the branch above a node.
    pub(super) fn length(&self, layout: &Layout, node: usize) -> f64 {
        let above = layout.parents[node].map_or(0.0, |parent| layout.depth[parent]);
        self.scale * (layout.depth[node] - above)
    }

    /// A tip's name: at the tip; around a circle, all at its rim.
    pub(super) fn name(&self, layout: &Layout, tip: usize) -> Spot {
        let gap = NAME_GAP / self.scale;
        match self.shape {
            Shape::Rows { .. } => self.at(layout.depth[tip] + gap, layout.row[tip]),
            // Names of a circle stand at its rim, whatever the tip's depth; leaders lead to them.
            Shape::Circle { .. } => self.at(1.0 + gap, layout.row[tip]),
        }
    }

    /// The line from a tip to its name, where they are apart.
    pub(super) fn leader(&self, path: &mut String, layout: &Layout, tip: usize) {
        let depth = layout.depth[tip];
        if matches!(self.shape, Shape::Circle { .. }) && (1.0 - depth) * self.scale > 2.0 * NAME_GAP
        {
            let gap = NAME_GAP / self.scale;
            let [from, to] = [depth + gap, 1.0].map(|depth| self.at(depth, layout.row[tip]));
            let _ = write!(path, "M{:.1} {:.1}L{:.1} {:.1}", from.x, from.y, to.x, to.y);
        }
    }

    /// The branch above a node, from where its parent's fork begins.
    pub(super) fn branch(&self, path: &mut String, layout: &Layout, parent: usize, node: usize) {
        let from = self.spot(layout, parent);
        let to = self.spot(layout, node);
        let corner = self.at(layout.depth[parent], layout.row[node]);
        match self.shape {
            Shape::Rows { .. } => {
                let down = to.y - from.y;
                // Never more than the branch itself.
                let round = CORNER.min(down.abs()).min(to.x - from.x).max(0.0);
                let turn = corner.y - round.copysign(down);
                let _ = write!(
                    path,
                    "M{:.1} {:.1}V{turn:.1}Q{:.1} {:.1} {:.1} {:.1}H{:.1}",
                    from.x,
                    from.y,
                    corner.x,
                    corner.y,
                    corner.x + round,
                    corner.y,
                    to.x
                );
            }
            Shape::Circle { inner, step, .. } => {
                let radius = inner + self.scale * layout.depth[parent];
                let turn = step * (layout.row[node] - layout.row[parent]);
                // The two flags choose one of the four arcs between the points (SVG, section
                // 9.3.8).
                let (large, sweep) = (u8::from(turn.abs() > PI), u8::from(turn > 0.0));
                let _ = write!(
                    path,
                    "M{:.1} {:.1}A{radius:.1} {radius:.1} 0 {large} {sweep} {:.1} {:.1}\
                     L{:.1} {:.1}",
                    from.x, from.y, corner.x, corner.y, to.x, to.y
                );
            }
        }
    }

    /// The stub before a root.
    pub(super) fn root(&self, path: &mut String, layout: &Layout, root: usize) {
        let spot = self.spot(layout, root);
        let (x, y) = match self.shape {
            Shape::Rows { .. } => (spot.x - ROOT, spot.y),
            Shape::Circle { centre, .. } => (centre[0], centre[1]),
        };
        let _ = write!(path, "M{x:.1} {y:.1}L{:.1} {:.1}", spot.x, spot.y);
    }
}

const MARGIN: f64 = 18.0;
/// Length of a root's stub.
const ROOT: f64 = 12.0;
/// Between a tip and its name.
const NAME_GAP: f64 = 5.0;
/// Height below the tree for the scale bar.
const LEGEND: f64 = 48.0;
/// Radius of a rounded corner.
const CORNER: f64 = 4.0;
/// Share of a circle that is left open.
const OPEN: f64 = 0.02;
const RIM_MIN: f64 = 230.0;

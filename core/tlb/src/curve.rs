//! A curve: cycles per access against the number of pages that are accessed.
//!
//! Why here: it is all that the detector knows of a machine, so measured and made-up curves look
//! alike. Must stay true: points ascend by pages, one for each number. Pure.

use serde::Serialize;

/// Measurement at one number of pages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Point {
    /// Pages that were accessed in turn.
    pub pages: usize,
    /// Cycles per access in the fastest window.
    pub cycles: f64,
    /// Cycles per access that a fifth of the windows stayed below.
    pub cycles_fifth: f64,
    /// Number of windows measured.
    pub windows: usize,
}

/// Points in ascending order of pages.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(transparent)]
pub struct Curve {
    points: Vec<Point>,
}

impl Curve {
    /// A curve of these points, in any order.
    #[must_use]
    pub fn new(points: impl IntoIterator<Item = Point>) -> Self {
        let mut curve = Self::default();
        for point in points {
            curve.add(point);
        }
        curve
    }

    /// Adds a point. Where its number of pages was measured before, the faster of both counts:
    /// whatever disturbs a measurement makes it slower.
    pub fn add(&mut self, point: Point) {
        match self
            .points
            .binary_search_by_key(&point.pages, |old| old.pages)
        {
            Err(place) => self.points.insert(place, point),
            Ok(place) => {
                let old = &mut self.points[place];
                old.cycles = old.cycles.min(point.cycles);
                old.cycles_fifth = old.cycles_fifth.min(point.cycles_fifth);
                old.windows += point.windows;
            }
        }
    }

    /// The points.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Pages and cycles of the fastest windows, without points that such a curve cannot have
    /// (misread clocks, disturbances).
    #[must_use]
    pub fn fastest(&self) -> Vec<(f64, f64)> {
        clean(self.points.iter().map(|p| (p.pages as f64, p.cycles)))
    }

    /// Pages and cycles that a fifth of the windows stayed below, without points that such a curve
    /// cannot have (misread clocks, disturbances).
    #[must_use]
    pub(crate) fn fifth(&self) -> Vec<(f64, f64)> {
        clean(self.points.iter().map(|p| (p.pages as f64, p.cycles_fifth)))
    }

    /// Pages and cycles of the fastest windows, as measured.
    #[must_use]
    pub(crate) fn raw(&self) -> Vec<(f64, f64)> {
        self.points
            .iter()
            .map(|p| (p.pages as f64, p.cycles))
            .collect()
    }

    /// Pages and cycles that a fifth of the windows stayed below, as measured.
    #[must_use]
    pub(crate) fn raw_fifth(&self) -> Vec<(f64, f64)> {
        let points = self.points.iter();
        points.map(|p| (p.pages as f64, p.cycles_fifth)).collect()
    }

    /// Cycles per access at any number of pages, between the points by logarithm of the pages and
    /// constant beyond the ends; `None` without points.
    #[must_use]
    pub fn at(&self, pages: f64) -> Option<f64> {
        let points = self.fastest();
        let after = points.partition_point(|&(at, _)| at < pages);
        let (Some(&last), Some(&first)) = (points.last(), points.first()) else {
            return None;
        };
        if after == 0 {
            return Some(first.1);
        }
        let Some(&(right, high)) = points.get(after) else {
            return Some(last.1);
        };
        let (left, low) = points[after - 1];
        let share = (pages / left).ln() / (right / left).ln();
        Some(low + (high - low) * share)
    }
}

/// Removes points that a curve of this kind cannot have: more than a tenth below their neighbours,
/// two on each side (a clock that was misread), or higher at fewer pages than at more (a
/// disturbance).
fn clean(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut points: Vec<_> = points.collect();
    let raw = points.clone();
    let least = |points: &[(f64, f64)]| points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    for index in 2..raw.len().saturating_sub(2) {
        let before = least(&raw[index - 2..index]);
        let around = before.min(least(&raw[index + 1..index + 3]));
        if raw[index].1 < around * (1.0 - MISREAD_SHARE) {
            points[index].1 = around;
        }
    }
    let mut lowest = f64::INFINITY;
    for point in points.iter_mut().rev() {
        lowest = lowest.min(point.1);
        point.1 = lowest;
    }
    points
}

const MISREAD_SHARE: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: &[(usize, f64)]) -> Curve {
        Curve::new(values.iter().map(|&(pages, cycles)| Point {
            pages,
            cycles,
            cycles_fifth: cycles,
            windows: 1,
        }))
    }

    #[test]
    fn the_faster_of_two_counts_and_spikes_go() {
        let mut curve = curve(&[
            (8, 4.0),
            (16, 9.0),
            (32, 4.1),
            (64, 11.0),
            (90, 11.0),
            (128, 5.0),
            (180, 11.0),
            (256, 11.0),
        ]);
        assert_eq!(curve.fastest()[1], (16.0, 4.1), "higher than later ones");
        assert_eq!(curve.fastest()[5], (128.0, 11.0), "below all neighbours");
        curve.add(Point {
            pages: 16,
            cycles: 4.0,
            cycles_fifth: 4.5,
            windows: 3,
        });
        assert_eq!(curve.points()[1].cycles, 4.0);
        assert_eq!(curve.points()[1].windows, 4);
    }

    #[test]
    fn between_points_is_between_their_cycles() {
        let curve = curve(&[(8, 4.0), (32, 8.0)]);
        assert_eq!(curve.at(1.0), Some(4.0));
        assert!((curve.at(16.0).unwrap() - 6.0).abs() < 1e-9);
        assert_eq!(curve.at(100.0), Some(8.0));
        assert_eq!(Curve::default().at(3.0), None);
    }
}

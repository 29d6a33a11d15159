//! A curve of any length in bounded room.
//!
//! Why here: a search runs for days, and its page shows all of it. Must stay true: at most
//! [`POINTS_MAX`] points, the first one and the last one among them. When the room is full, every
//! second point goes and points are taken half as often from there on. Pure.

/// The most points of a curve.
pub(crate) const POINTS_MAX: usize = 256;

/// Points in the order of their first coordinate.
#[derive(Debug, Clone)]
pub(crate) struct Curve {
    kept: Vec<(f64, f64)>,
    /// Points for each one that is kept.
    stride: u64,
    /// Points that came since the last one that was kept.
    skipped: u64,
    last: Option<(f64, f64)>,
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            stride: 1,
            skipped: 0,
            last: None,
        }
    }
}

impl Curve {
    /// Adds a point; true if the curve has changed. One with the value of the point before is no
    /// news, and one that is not finite is no point.
    pub(crate) fn add(&mut self, x: f64, y: f64) -> bool {
        let is_news = self.last.is_none_or(|(_, before)| before != y);
        if !(x.is_finite() && y.is_finite() && is_news) {
            return false;
        }
        self.last = Some((x, y));
        self.skipped += 1;
        if self.kept.is_empty() || self.skipped >= self.stride {
            self.skipped = 0;
            self.kept.push((x, y));
        }
        // One place is left for the last point.
        if self.kept.len() >= POINTS_MAX {
            let mut number = 0usize;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.stride = self.stride.saturating_mul(2);
        }
        true
    }

    /// The points, the newest last.
    pub(crate) fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let kept_last = self.kept.last().copied();
        let last = self.last.filter(|last| Some(*last) != kept_last);
        self.kept.iter().copied().chain(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_ends_and_its_shape() {
        let mut curve = Curve::default();
        for step in 0..1_000_000 {
            let x = f64::from(step);
            curve.add(x, -1e6 / (x + 1.0));
            if step % 9973 == 0 {
                assert!(curve.points().count() <= POINTS_MAX);
            }
        }
        let points: Vec<_> = curve.points().collect();
        assert!(
            (100..=POINTS_MAX).contains(&points.len()),
            "{}",
            points.len()
        );
        assert_eq!(points[0], (0.0, -1e6));
        assert_eq!(points[points.len() - 1].0, 999_999.0);
        assert!(points.is_sorted_by(|one, two| one.0 < two.0 && one.1 < two.1));
    }

    #[test]
    fn what_is_no_point_and_no_news_adds_nothing() {
        let mut curve = Curve::default();
        assert!(curve.add(0.0, -5.0));
        assert!(!curve.add(1.0, -5.0));
        assert!(!curve.add(2.0, f64::NAN));
        assert!(!curve.add(f64::INFINITY, -4.0));
        assert!(curve.add(3.0, -4.0));
        assert_eq!(
            curve.points().collect::<Vec<_>>(),
            [(0.0, -5.0), (3.0, -4.0)]
        );
    }
}

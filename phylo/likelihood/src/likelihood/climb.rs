//! Maximum of a function of several variables within bounds, by the BFGS method (Broyden, Fletcher,
//! Goldfarb and Shanno).
//!
//! Why here: a model's parameters depend on one another, and fitting one after another undoes a
//! part of the earlier gains. Derivatives are finite differences: a likelihood that keeps no CLVs
//! is cheap. The maximum along one variable alone is bracketed.
//! Sources: Nocedal and Wright, "Numerical optimization" (2006), chapters 3 and 6; Brent,
//! "Algorithms for minimization without derivatives" (1973), chapter 5.
//! Must stay true: the point that comes back is never worse than the start.

use crate::model::Coordinate;

/// Estimate of a function's curvature: the negated inverse Hessian, row by row. Kept from one climb
/// to the next, it saves measuring the curvature again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Bend {
    inverse: Vec<f64>,
}

/// Climbs until the predicted gain of a step is less than `epsilon`; returns the maximum. `point`
/// has the start and receives the maximum's position.
pub(crate) fn climb<E>(
    point: &mut [Coordinate],
    bend: &mut Bend,
    epsilon: f64,
    mut f: impl FnMut(&[f64]) -> Result<f64, E>,
) -> Result<f64, E> {
    let n = point.len();
    let mut x: Vec<f64> = point.iter().map(|coordinate| coordinate.at).collect();
    let mut value = f(&x)?;
    let mut slope = vec![0.0; n];
    if bend.inverse.len() == n * n {
        slopes(point, &x, value, &mut slope, &mut f)?;
    } else {
        *bend = bends(point, &x, value, &mut slope, &mut f)?;
    }
    for _ in 0..STEPS_MAX {
        let mut step = direction(point, &x, &slope, bend);
        let mut gain = dot(&step, &slope);
        if gain <= 0.0 {
            // Rounding has spoilt the matrix: begin again with its diagonal.
            *bend = bends(point, &x, value, &mut slope, &mut f)?;
            step = direction(point, &x, &slope, bend);
            gain = dot(&step, &slope);
        }
        // To second order a step gains half of it.
        if 0.5 * gain < epsilon {
            break;
        }
        let longest = step.iter().fold(0.0_f64, |most, step| most.max(step.abs()));
        let mut part = (STEP_MAX / longest).min(1.0);
        let mut taken = None;
        for _ in 0..HALVINGS_MAX {
            let at = |k: usize| (x[k] + part * step[k]).clamp(point[k].range[0], point[k].range[1]);
            let next: Vec<f64> = (0..n).map(at).collect();
            let there = f(&next)?;
            if there > value + 1e-4 * part * gain {
                taken = Some((next, there));
                break;
            }
            // The vertex of the parabola through the known values, but not too near either end.
            let lost = value + part * gain - there;
            part *= (0.5 * part * gain / lost).clamp(0.1, 0.5);
        }
        let Some((next, there)) = taken else { break };
        let before = slope.clone();
        slopes(point, &next, there, &mut slope, &mut f)?;
        let moved: Vec<f64> = next.iter().zip(&x).map(|(a, b)| a - b).collect();
        let turned: Vec<f64> = before.iter().zip(&slope).map(|(a, b)| a - b).collect();
        bend.learn(&moved, &turned);
        let gained = there - value;
        (x, value) = (next, there);
        if gained < 0.1 * epsilon {
            break;
        }
    }
    for (coordinate, x) in point.iter_mut().zip(x) {
        coordinate.at = x;
    }
    Ok(value)
}

/// Direction of a step: the inverse Hessian times the slope, but not against a bound.
fn direction(point: &[Coordinate], x: &[f64], slope: &[f64], bend: &Bend) -> Vec<f64> {
    let n = x.len();
    let at_bound = |k: usize| {
        let [least, most] = point[k].range;
        // A coordinate that pushes against its bound would turn the step of all others, and is left
        // out.
        x[k] <= least && slope[k] < 0.0 || x[k] >= most && slope[k] > 0.0
    };
    let free: Vec<bool> = (0..n).map(|k| !at_bound(k)).collect();
    let row = |i: usize| {
        let entries = bend.inverse[i * n..][..n].iter().zip(slope).zip(&free);
        entries
            .filter(|(_, free)| **free)
            .map(|((h, g), _)| h * g)
            .sum()
    };
    (0..n).map(|i| if free[i] { row(i) } else { 0.0 }).collect()
}

/// One-sided differences.
fn slopes<E>(
    point: &[Coordinate],
    x: &[f64],
    value: f64,
    slope: &mut [f64],
    f: &mut impl FnMut(&[f64]) -> Result<f64, E>,
) -> Result<(), E> {
    let mut at = x.to_vec();
    for k in 0..x.len() {
        // Towards the inside of the range.
        let h = if x[k] + NEAR < point[k].range[1] {
            NEAR
        } else {
            -NEAR
        };
        at[k] = x[k] + h;
        slope[k] = (f(&at)? - value) / h;
        at[k] = x[k];
    }
    Ok(())
}

/// Central differences: slopes, and an inverse Hessian with only its diagonal set.
fn bends<E>(
    point: &[Coordinate],
    x: &[f64],
    value: f64,
    slope: &mut [f64],
    f: &mut impl FnMut(&[f64]) -> Result<f64, E>,
) -> Result<Bend, E> {
    let n = x.len();
    let mut inverse = vec![0.0; n * n];
    let mut at = x.to_vec();
    for k in 0..n {
        let [least, most] = point[k].range;
        // A coordinate at its bound is looked at from a little inside it.
        let middle = x[k].clamp(least + FAR, (most - FAR).max(least + FAR));
        let centre = if middle == x[k] {
            value
        } else {
            at[k] = middle;
            f(&at)?
        };
        at[k] = middle + FAR;
        let above = f(&at)?;
        at[k] = middle - FAR;
        let below = f(&at)?;
        at[k] = x[k];
        slope[k] = (above - below) / (2.0 * FAR);
        // FAR is wide: a second difference divides rounding by its square.
        let bend = (2.0 * centre - above - below) / (FAR * FAR);
        // Not a hill here: a step of a quarter, uphill.
        inverse[k * n + k] = if bend > 4.0 * slope[k].abs() * 0.25 {
            1.0 / bend
        } else {
            0.25 / slope[k].abs().max(1.0)
        };
    }
    Ok(Bend { inverse })
}

impl Bend {
    /// True while no curvature is known.
    pub(super) fn is_new(&self) -> bool {
        self.inverse.is_empty()
    }

    /// Updates the inverse Hessian after a move changed the slope (the BFGS update).
    fn learn(&mut self, moved: &[f64], turned: &[f64]) {
        let n = moved.len();
        let along = dot(moved, turned);
        // Without positive curvature along the move the inverse would not stay positive definite.
        if along <= 1e-10 * (dot(moved, moved) * dot(turned, turned)).sqrt() {
            return;
        }
        let h = &mut self.inverse;
        let ht: Vec<f64> = (0..n).map(|i| dot(&h[i * n..][..n], turned)).collect();
        let scale = (1.0 + dot(turned, &ht) / along) / along;
        for i in 0..n {
            for j in 0..n {
                h[i * n + j] +=
                    scale * moved[i] * moved[j] - (ht[i] * moved[j] + moved[i] * ht[j]) / along;
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Steps of one-sided and two-sided differences, in a logarithm.
const NEAR: f64 = 1e-5;
const FAR: f64 = 1e-2;
/// The longest step along one coordinate: a factor of four and a half.
const STEP_MAX: f64 = 1.5;
const STEPS_MAX: usize = 100;
const HALVINGS_MAX: usize = 12;

/// The largest value of `f` between two ends, from a start between them; and its position.
pub(crate) fn maximise<E>(
    [mut a, mut b]: [f64; 2],
    start: f64,
    tolerance: f64,
    mut f: impl FnMut(f64) -> Result<f64, E>,
) -> Result<(f64, f64), E> {
    let mut x = start.clamp(a, b);
    let mut fx = f(x)?;
    let (mut w, mut fw, mut v, mut fv) = (x, fx, x, fx);
    let (mut step, mut before) = (0.0_f64, 0.0_f64);
    for _ in 0..EVALUATIONS_MAX {
        let middle = 0.5 * (a + b);
        if (x - middle).abs() + 0.5 * (b - a) <= 2.0 * tolerance {
            break;
        }
        // A parabola through the three best, if it can be trusted; else the golden section.
        let r = (x - w) * (fv - fx);
        let q = (x - v) * (fw - fx);
        let p = (x - v) * q - (x - w) * r;
        let q = 2.0 * (q - r);
        let (p, q) = if q > 0.0 { (-p, q) } else { (p, -q) };
        // Brent's conditions: inside the bracket, and shorter than half of the step before the
        // last.
        let trusted = before.abs() > tolerance
            && p.abs() < (0.5 * q * before).abs()
            && p > q * (a - x)
            && p < q * (b - x);
        if trusted {
            before = step;
            step = p / q;
            if (x + step) - a < 2.0 * tolerance || b - (x + step) < 2.0 * tolerance {
                step = tolerance.copysign(middle - x);
            }
        } else {
            before = if x < middle { b - x } else { a - x };
            step = GOLDEN * before;
        }
        // Steps below the tolerance would compare rounding errors.
        let u = x + if step.abs() >= tolerance {
            step
        } else {
            tolerance.copysign(step)
        };
        let fu = f(u)?;
        if fu >= fx {
            if u < x {
                b = x
            } else {
                a = x
            }
            (v, fv, w, fw, x, fx) = (w, fw, x, fx, u, fu);
        } else {
            if u < x {
                a = u
            } else {
                b = u
            }
            if fu >= fw || w == x {
                (v, fv, w, fw) = (w, fw, u, fu);
            } else if fu >= fv || v == x || v == w {
                (v, fv) = (u, fu);
            }
        }
    }
    Ok((x, fx))
}

/// The golden section.
const GOLDEN: f64 = 0.381_966_011_250_105;
const EVALUATIONS_MAX: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: &[f64], range: [f64; 2], f: impl Fn(&[f64]) -> f64) -> (Vec<f64>, f64, usize) {
        let mut point: Vec<Coordinate> = start.iter().map(|&at| Coordinate { at, range }).collect();
        let mut calls = 0;
        let top = climb(&mut point, &mut Bend::default(), 1e-9, |x| {
            calls += 1;
            Ok::<_, ()>(f(x))
        });
        (point.iter().map(|c| c.at).collect(), top.unwrap(), calls)
    }

    #[test]
    fn a_curved_valley() {
        // Rosenbrock's function, negated.
        let f = |x: &[f64]| -(100.0 * (x[1] - x[0] * x[0]).powi(2) + (1.0 - x[0]).powi(2));
        let (x, top, calls) = run(&[-1.2, 1.0], [-5.0, 5.0], f);
        assert!(
            (x[0] - 1.0).abs() < 1e-2 && (x[1] - 1.0).abs() < 2e-2,
            "{x:?}"
        );
        assert!(top > -1e-4 && calls < 400, "{top} {calls}");
    }

    #[test]
    fn a_top_beyond_a_bound() {
        let f = |x: &[f64]| -((x[0] - 3.0).powi(2) + (x[1] + 0.5).powi(2) + x[0] * x[1]);
        let (x, _, _) = run(&[0.0, 0.0], [-1.0, 1.0], f);
        // At x = 1 the other's best is -1/2 - 1/2.
        assert!(
            (x[0] - 1.0).abs() < 1e-6 && (x[1] + 1.0).abs() < 1e-3,
            "{x:?}"
        );
    }

    #[test]
    fn never_worse_than_the_start() {
        let f = |x: &[f64]| {
            if x[0] == 0.25 {
                1.0
            } else {
                -x[0].abs().sqrt()
            }
        };
        let (_, top, _) = run(&[0.25], [-1.0, 1.0], f);
        assert_eq!(top, 1.0);
    }
}

//! Maximum of a function of one variable.
//!
//! Source: Brent, "Algorithms for minimization without derivatives" (1973), chapter 5.

/// The largest value of `f` between two ends, from a start between them; and its position.
pub(super) fn maximise<E>(
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

//! Scalers: for each class and rate the number of times that its CLV entries were scaled.
//!
//! Must stay true: a node's scalers are the sum of its children's and of its own scalings; none is
//! written before the first scaling, since most nodes have none.

use super::lanes::Lanes;

/// Counts one scaling; the counts are all 0 until the first.
#[cold]
#[inline(never)]
pub(super) fn count_scaling(scalers: &mut [u16], at: usize, scaled: &mut bool) {
    if !std::mem::replace(scaled, true) {
        scalers.fill(0);
    }
    scalers[at] = scalers[at].saturating_add(1);
}

/// The scalers of both sides, added, class by class. False, with nothing written, where neither
/// side has any.
#[inline(always)]
pub(super) fn join_counts<V: Lanes>(
    rates: usize,
    counts: &mut [u16],
    index: [&[u16]; 2],
    sides: [&[u16]; 2],
) -> bool {
    // No closures here: they would not get the caller's instructions.
    let only = match [sides[0].is_empty(), sides[1].is_empty()] {
        [true, true] => return false,
        [false, false] => None,
        [left_empty, _] => Some(usize::from(left_empty)),
    };
    // The usual number of rates: arrays of fixed size are added in one instruction.
    if rates == 4 {
        let counts = counts.as_chunks_mut::<4>().0;
        let (left, right) = (sides[0].as_chunks::<4>().0, sides[1].as_chunks::<4>().0);
        match only {
            Some(side) => {
                let from = if side == 0 { left } else { right };
                for (to, &class) in counts.iter_mut().zip(index[side]) {
                    *to = from[usize::from(class)];
                }
            }
            None => {
                for ((to, &a), &b) in counts.iter_mut().zip(index[0]).zip(index[1]) {
                    *to = V::add_counts(&left[usize::from(a)], &right[usize::from(b)]);
                }
            }
        }
        return true;
    }
    counts.fill(0);
    for (index, scalers) in index
        .into_iter()
        .zip(sides)
        .filter(|(_, side)| !side.is_empty())
    {
        for (to, &class) in counts.chunks_mut(rates).zip(index) {
            let from = &scalers[usize::from(class) * rates..][..rates];
            for (to, from) in to.iter_mut().zip(from) {
                *to = to.saturating_add(*from);
            }
        }
    }
    true
}

/// Adds the scalers of a third side to those of [`join_counts`], which were written if `counted`.
#[inline(always)]
pub(super) fn add_counts(
    rates: usize,
    counts: &mut [u16],
    counted: bool,
    index: &[u16],
    side: &[u16],
) -> bool {
    if side.is_empty() {
        return counted;
    }
    // The memory still holds old counts.
    if !counted {
        counts.fill(0);
    }
    for (to, &class) in counts.chunks_exact_mut(rates).zip(index) {
        let from = &side[usize::from(class) * rates..][..rates];
        for (to, from) in to.iter_mut().zip(from) {
            *to = to.saturating_add(*from);
        }
    }
    true
}

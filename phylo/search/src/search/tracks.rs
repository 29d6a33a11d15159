//! Names of a search's steps, as they are recorded: `docs/trace.md` explains them.

use super::state::Phase;
use sidecore_trace::Name;

/// The name of a step in this phase; its argument is the number of the round.
pub(super) fn step(phase: Phase) -> &'static Name {
    static FIRST: Name = Name::new("trees", "first fit", ["round", ""]);
    static FAST: Name = Name::new("trees", "fast SPR moves", ["round", "place"]);
    static MIDDLE: Name = Name::new("trees", "fit between", ["round", ""]);
    static SLOW: Name = Name::new("trees", "slow SPR moves", ["round", "place"]);
    static PERTURB: Name = Name::new("trees", "perturbation", ["round", ""]);
    static LAST: Name = Name::new("trees", "last fit", ["round", ""]);
    match phase {
        Phase::First => &FIRST,
        Phase::Fast => &FAST,
        Phase::Middle => &MIDDLE,
        Phase::Slow => &SLOW,
        Phase::Perturb => &PERTURB,
        Phase::Last | Phase::Done => &LAST,
    }
}

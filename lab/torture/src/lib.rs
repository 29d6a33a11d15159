//! Programs stopped before chosen system calls, for tests of what happens there.
//!
//! Why here: the program of this package makes calls fail, tests of others exchange what paths lead
//! to; both stop programs in one way. Never published.

pub mod stepper;

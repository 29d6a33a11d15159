//! Programs stopped before chosen system calls, for tests of the effects there.
//!
//! Why here: the program of this package makes calls fail, tests of other packages exchange the
//! components of paths; both stop programs in one way. Never published.

pub mod stepper;

//! Names: of spans and their arguments, of lanes, and texts that are arguments.
//!
//! Why here: a record has no room for a text. A name is a static with a number, which it gets at
//! its first use; texts that are known only at run time get theirs by [`crate::label`] and
//! [`Lane::new`].
//! Must stay true: numbers begin at 1 and never change; a table that is full gives 0, which is
//! written as `?`.

use std::sync::atomic::AtomicU32;

/// The name of a span, an instant, a counter or a flow. Make it a static.
///
/// ```
/// use sidecore_trace::Name;
///
/// static DECOMPRESS: Name = Name::new("image", "decompress", ["frame", "stored_bytes"]);
/// ```
#[derive(Debug)]
pub struct Name {
    pub(crate) category: &'static str,
    pub(crate) text: &'static str,
    /// Names of the arguments; none where it is empty. One that begins with `$` is a
    /// [`crate::label`].
    pub(crate) arguments: [&'static str; 2],
    /// Name of the value that a span ends with; none where it is empty.
    pub(crate) result: &'static str,
    pub(crate) number: AtomicU32,
}

impl Name {
    /// A name in a category (the product, or `engine`), with the names of two arguments: empty
    /// for none, beginning with `$` for one whose value is a [`crate::label`].
    #[must_use]
    pub const fn new(
        category: &'static str,
        text: &'static str,
        arguments: [&'static str; 2],
    ) -> Self {
        Self {
            category,
            text,
            arguments,
            result: "",
            number: AtomicU32::new(0),
        }
    }

    /// The same name of spans that end with a value ([`crate::Span::set_result`]).
    #[must_use]
    pub const fn with_result(mut self, result: &'static str) -> Self {
        self.result = result;
        self
    }
}

/// A track of its own for something that several threads drive by turns, as an engine is.
///
/// While a thread is in a lane ([`Lane::enter`]), its spans stand on the lane's track, and its own
/// track says that it is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lane(pub(crate) u32);

/// The most texts that are arguments.
pub(crate) const LABELS_MAX: usize = 4_096;
/// The most lanes of a process.
pub const LANES_MAX: usize = 1_024;

//! Names: of spans and their arguments, of lanes, and texts that are arguments.
//!
//! Why here: a record has no room for a text. A name is a static with a number, which it gets at
//! its first use; texts that are known only at run time get theirs by [`label`] and [`Lane::new`].
//! Must stay true: numbers begin at 1 and never change; a table that is full gives 0, which is
//! written as `?`.

use crate::recorder;
use crate::registry::registry;
use std::sync::atomic::{AtomicU32, Ordering};

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
    /// Names of the arguments; none where it is empty. One that begins with `$` is a [`label`].
    pub(crate) arguments: [&'static str; 2],
    /// Name of the value that a span ends with; none where it is empty.
    pub(crate) result: &'static str,
    number: AtomicU32,
}

impl Name {
    /// A name in a category (the product, or `engine`), with the names of two arguments: empty
    /// for none, beginning with `$` for one whose value is a [`label`].
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

    /// Its number, which it gets at the first call.
    #[inline]
    pub(crate) fn number(&'static self) -> u32 {
        // Relaxed: the number alone says all; the table is read under its lock.
        match self.number.load(Ordering::Relaxed) {
            0 => self.register(),
            number => number,
        }
    }

    #[cold]
    fn register(&'static self) -> u32 {
        let mut registry = registry();
        // Another thread may have been quicker.
        let number = self.number.load(Ordering::Relaxed);
        if number != 0 {
            return number;
        }
        registry.names.push(self);
        let number = u32::try_from(registry.names.len()).unwrap_or(u32::MAX);
        self.number.store(number, Ordering::Relaxed);
        number
    }
}

/// The number of a text, for arguments whose name begins with `$`: the same for the same text. 0
/// while nothing is recorded, and for more than [`LABELS_MAX`] texts. Takes a lock: not for the
/// data path.
#[must_use]
pub fn label(text: &str) -> u64 {
    if !recorder::is_on() {
        return 0;
    }
    u64::from(number_of(&mut registry().labels, text))
}

/// A track of its own for something that several threads drive by turns, as an engine is.
///
/// While a thread is in a lane ([`Lane::enter`]), its spans stand on the lane's track, and its own
/// track says that it is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lane(pub(crate) u32);

impl Lane {
    /// A track with the name that `name` gives. While nothing is recorded, and with more than
    /// [`LANES_MAX`] lanes, it is none, and `name` may not be called.
    #[must_use]
    pub fn new(name: impl FnOnce() -> String) -> Self {
        if !recorder::is_on() {
            return Self(0);
        }
        let name = name();
        let lanes = &mut registry().lanes;
        if lanes.len() == LANES_MAX {
            return Self(0);
        }
        lanes.push(name);
        Self(u32::try_from(lanes.len()).unwrap_or(0))
    }

    /// A number for the flow to this lane that `count` counts.
    #[inline]
    #[must_use]
    pub fn flow(self, count: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(count)
    }
}

fn number_of(table: &mut Vec<String>, text: &str) -> u32 {
    let place = table.iter().position(|known| known == text);
    let place = place.or_else(|| {
        (table.len() < LABELS_MAX).then(|| {
            table.push(text.to_owned());
            table.len() - 1
        })
    });
    place.map_or(0, |place| u32::try_from(place + 1).unwrap_or(0))
}

/// The most texts that are arguments.
pub const LABELS_MAX: usize = 4_096;
/// The most lanes of a process.
pub const LANES_MAX: usize = 1_024;

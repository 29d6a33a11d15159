//! What a script's call comes to.

use super::call::Returned;
use std::fmt;

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value}"),
            Self::Error(error) => write!(f, "-1 {error}"),
            Self::Waits => write!(f, "nothing yet: it waits (write its time as FROM...TO)"),
            Self::Other(what) => write!(f, "{what}"),
        }
    }
}

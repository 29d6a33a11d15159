//! Errors as Python's exceptions.

use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::{PyErr, PyResult};
use sidecore_sys::text::printable;
use std::error::Error;
use std::fmt::Display;

create_exception!(
    sidecore_phylo,
    PhyloError,
    PyValueError,
    "Something that is given cannot be read, or does not go together."
);

/// An error of ours with all its causes, in characters that a terminal only shows.
pub(crate) fn refuse(error: impl Error) -> PyErr {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        // Some errors contain their cause's text already.
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    // Names in input may hold control characters, which a terminal would obey.
    PhyloError::new_err(printable(&text).into_owned())
}

/// The choice of this name, for the keyword `what`.
pub(crate) fn choose<T: Copy>(what: &str, given: &str, choices: &[(&str, T)]) -> PyResult<T> {
    if let Some((_, found)) = choices.iter().find(|(name, _)| *name == given) {
        return Ok(*found);
    }
    let names: Vec<String> = choices
        .iter()
        .map(|(name, _)| format!("{name:?}"))
        .collect();
    let names = names.join(", ");
    // The last comma of the list is an "or".
    let names = match names.rsplit_once(", ") {
        Some((first, last)) => format!("{first} or {last}"),
        None => names,
    };
    Err(PhyloError::new_err(format!("{what}={given:?}: {names}")))
}

/// As [`refuse`], with the operation that failed before it.
pub(crate) fn refuse_with<E: Error>(what: impl Display) -> impl FnOnce(E) -> PyErr {
    move |error| {
        let text = format!("{what}: {error}");
        PhyloError::new_err(printable(&text).into_owned())
    }
}

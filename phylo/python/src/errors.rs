//! Errors as Python's exceptions.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
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
    PhyloError::new_err(printable(&text).into_owned())
}

/// As [`refuse`], with the operation that failed before it.
pub(crate) fn refuse_with<E: Error>(what: impl Display) -> impl FnOnce(E) -> PyErr {
    move |error| {
        let text = format!("{what}: {error}");
        PhyloError::new_err(printable(&text).into_owned())
    }
}

//! Parts that calls have in common: models, partitions, trees, engines, exceptions.

use pyo3::create_exception;
use pyo3::exceptions::{PyTypeError, PyUserWarning, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::io::data::{Partitions, is_doubtful, linkage, model_name};
use sidecore_phylo::likelihood::{Lengths, PartOptions};
use sidecore_phylo::msa::{Alignment, Findings, Patterns, Warning};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::runner::pool_config;
use sidecore_phylo::tree::Tree;
use sidecore_sys::cpu;
use sidecore_sys::text::{causes, printable};
use std::error::Error;
use std::ffi::CString;
use std::fmt::Display;

/// A tree that a call is given: Newick, or an object of this or another library that has it.
#[derive(Debug)]
pub(crate) struct TreeText(String);

impl std::ops::Deref for TreeText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'py> FromPyObject<'_, 'py> for TreeText {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = given.extract::<String>() {
            return Ok(Self(text));
        }
        let text: String = text_of(&given)?.extract()?;
        // Other objects print something, too.
        match text.trim_start().starts_with(['(', '[']) {
            true => Ok(Self(text)),
            false => Err(PyTypeError::new_err(format!(
                "a tree is Newick text, or an object with to_newick(), as_string(\"newick\") or \
                 write(), not {}",
                given.get_type().name()?
            ))),
        }
    }
}

/// The Newick of an object, in the way of its library.
fn text_of<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = given.py();
    let options = PyDict::new(py);
    if given.hasattr("to_newick")? {
        return given.call_method0("to_newick");
    }
    // DendroPy.
    if given.hasattr("as_string")? {
        options.set_item("schema", "newick")?;
        return given.call_method("as_string", (), Some(&options));
    }
    // Biopython, whose own default rounds lengths.
    if given.hasattr("get_terminals")? {
        options.set_item("format_branch_length", "%.17g")?;
        let writer = py.import("Bio.Phylo.NewickIO")?.getattr("Writer")?;
        let writer = writer.call1((vec![given.clone()],))?;
        let lines = writer.call_method("to_strings", (), Some(&options))?;
        return lines.call_method0("__next__");
    }
    // ETE.
    if given.hasattr("write")?
        && let Ok(text) = given.call_method0("write")
    {
        return Ok(text);
    }
    // TreeSwift, scikit-bio.
    Ok(given.str()?.into_any())
}

/// An alignment under one model, or cut into the partitions that `model`'s lines name, and the
/// linkage of their branch lengths: by default what the models ask for. Warns of what is odd.
pub(crate) fn parts(
    py: Python<'_>,
    alignment: &Alignment,
    model: &str,
    brlen: Option<&str>,
) -> PyResult<(Vec<PartOptions>, Lengths)> {
    let brlen = brlen.map(|name| choose("brlen", name, &Lengths::NAMED));
    let brlen = brlen.transpose()?;
    let msa = "the alignment";
    // No model's name has an equals sign; every line of partitions has one.
    let found = match model.contains('=') {
        true => Partitions::of_lines(alignment, msa, model, "the partitions").map_err(refuse)?,
        false => {
            let name = model_name(model).map_err(refuse_with(format!("model {model}")))?;
            Partitions::whole(alignment, msa, name).map_err(refuse)?
        }
    };
    let parts = found.parts;
    if is_doubtful(alignment, &parts) {
        say(
            py,
            "read as amino acids, which the model is for, but it looks like DNA",
        )?;
    }
    warn_of(py, alignment, parts.iter().map(|part| &part.patterns))?;
    let lengths = linkage(brlen, &parts).map_err(refuse)?;
    Ok((parts, lengths))
}

/// Warns of what is odd in an alignment.
pub(crate) fn warn_of<'p>(
    py: Python<'_>,
    alignment: &Alignment,
    patterns: impl IntoIterator<Item = &'p Patterns> + Clone,
) -> PyResult<()> {
    let findings = Findings::of(alignment, patterns);
    let mut warnings = findings.warnings(alignment).into_iter();
    warnings.try_for_each(|warning| say(py, &warning.to_string()))
}

/// Warns of branches without a length, where lengths count.
pub(crate) fn warn_of_lengths(py: Python<'_>, tree: &str) -> PyResult<()> {
    let newick = Newick::parse(tree).map_err(refuse_with("tree"))?;
    match Warning::no_length([&newick]) {
        Some(warning) => say(py, &format!("tree: {warning}")),
        None => Ok(()),
    }
}

/// Warns, as Python does.
pub(crate) fn say(py: Python<'_>, text: &str) -> PyResult<()> {
    // A name in the alignment may have any character, and C's strings end at this one.
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    let category = py.get_type::<PyUserWarning>();
    PyErr::warn(py, &category, &text, 2)
}

/// A tree in Newick, with the alignment's taxa.
pub(crate) fn tree(text: &str, names: &[String]) -> PyResult<Tree> {
    let newick = Newick::parse(text).map_err(refuse_with("tree"))?;
    Tree::from_newick(&newick, names).map_err(refuse_with("tree"))
}

/// Trees in Newick of any shape.
pub(crate) fn newicks(texts: &[TreeText]) -> PyResult<Vec<Newick>> {
    let numbered = texts.iter().enumerate();
    let parsed = numbered
        .map(|(at, text)| Newick::parse(text).map_err(refuse_with(format!("tree {}", at + 1))));
    parsed.collect()
}

/// A tree in Newick of any shape.
pub(crate) fn newick(text: &str) -> PyResult<Newick> {
    Newick::parse(text).map_err(refuse_with("tree"))
}

/// A report as a dict: what the command line prints with --json.
pub(crate) fn report<'py>(py: Python<'py>, report: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(report).map_err(refuse)?;
    py.import("json")?.call_method1("loads", (text,))
}

/// The cores that this process may use, and engines: the same number unless given.
pub(crate) fn pool(engines: Option<usize>, policy: &str) -> PyResult<(Vec<usize>, Pool)> {
    // The name first: a wrong one must not start threads.
    let policy = sidecore_sched::by_name(policy).map_err(refuse)?;
    let cpus = cpu::allowed().map_err(refuse)?;
    // A large machine does not get more engines than the pool starts by default.
    let engines = engines.unwrap_or(cpus.len().min(PoolConfig::default().engines));
    let pool = Pool::start(pool_config(engines, &cpus, policy)).map_err(refuse)?;
    Ok((cpus, pool))
}

create_exception!(
    sidecore_phylo,
    PhyloError,
    PyValueError,
    "Something that is given cannot be read, or does not go together."
);

/// An error of ours with all its causes, in characters that a terminal only shows.
pub(crate) fn refuse(error: impl Error + 'static) -> PyErr {
    PhyloError::new_err(causes(&error))
}

/// The choice of this name, for the keyword `what`; each has a line about it.
pub(crate) fn choose<T: Copy>(what: &str, given: &str, all: &[(&str, &str, T)]) -> PyResult<T> {
    if let Some((.., found)) = all.iter().find(|(name, ..)| *name == given) {
        return Ok(*found);
    }
    let names: Vec<String> = all.iter().map(|(name, ..)| format!("{name:?}")).collect();
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

//! Alignments: from files, text and arrays of characters, and back.

use crate::parts::{PhyloError, refuse, refuse_with};
use pyo3::exceptions::{PyOSError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use sidecore_phylo::io::input::{Input, InputError, Memory};
use sidecore_phylo::msa;
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Aligned sequences, at least four, with different names.
#[pyclass(frozen, module = "sidecore_phylo")]
pub(crate) struct Alignment {
    pub(crate) inner: msa::Alignment,
}

#[pymethods]
impl Alignment {
    /// From names and a 2-D array of characters, a row a taxon: dtype uint8 (ASCII) or S1.
    #[new]
    fn new(names: Vec<String>, characters: &Bound<'_, PyAny>) -> PyResult<Self> {
        let numpy = characters.py().import("numpy")?;
        // Bytes can be viewed only in contiguous memory.
        let mut array = numpy.call_method1("ascontiguousarray", (characters,))?;
        if array
            .getattr("dtype")?
            .eq(numpy.call_method1("dtype", ("S1",))?)?
        {
            // Strings of one byte have the same memory as numbers of one byte.
            array = array.call_method1("view", ("uint8",))?;
        }
        let dtype = array.getattr("dtype")?;
        let shape: Vec<usize> = array.getattr("shape")?.extract()?;
        let [taxa, sites] = shape[..] else {
            return Err(PyTypeError::new_err(format!(
                "characters must be an array of two dimensions (taxa, sites); it has {}",
                shape.len()
            )));
        };
        if !dtype.eq("uint8")? {
            return Err(PyTypeError::new_err(format!(
                "characters must be of dtype uint8 or S1, not {dtype}"
            )));
        }
        if taxa != names.len() {
            return Err(PhyloError::new_err(format!(
                "{} names for {taxa} rows of characters",
                names.len()
            )));
        }
        // A copy: Python may change the array while a later call reads the alignment without the
        // lock.
        let bytes: Vec<u8> = array.call_method0("tobytes")?.extract()?;
        // `chunks` would panic for rows without characters.
        let rows = match sites {
            0 => vec![Vec::new(); taxa],
            _ => bytes.chunks(sites).map(<[u8]>::to_vec).collect(),
        };
        let inner = msa::Alignment::new(names, rows).map_err(refuse)?;
        Ok(Self { inner })
    }

    /// Reads a file in any format of the command line's, plain, gzip, xz, bzip2 or zstd.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        // Reading may block: other threads of Python run meanwhile.
        py.detach(|| {
            let bytes = input(&path)?.bytes;
            let inner = msa::Alignment::parse(&bytes).map_err(refuse_with(path.display()))?;
            Ok(Self { inner })
        })
    }

    /// Parses the text of such a file.
    #[staticmethod]
    fn parse(text: &str) -> PyResult<Self> {
        let inner = msa::Alignment::parse(text.as_bytes()).map_err(refuse)?;
        Ok(Self { inner })
    }

    /// The taxa's names.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.inner.names().to_vec()
    }

    /// Number of columns.
    #[getter]
    fn sites(&self) -> usize {
        self.inner.sites()
    }

    /// The characters: a new array of uint8, (taxa, sites).
    fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (taxa, sites) = (self.inner.names().len(), self.inner.sites());
        // Row after row, which is NumPy's own order.
        let rows = (0..taxa).flat_map(|taxon| self.inner.row(taxon));
        let bytes: Vec<u8> = rows.copied().collect();
        array(py, &bytes, "uint8")?.call_method1("reshape", ((taxa, sites),))
    }

    /// The alignment as PHYLIP.
    fn to_phylip(&self) -> String {
        String::from_utf8_lossy(&self.inner.to_phylip()).into_owned()
    }

    /// The parts that pickle makes it from again.
    fn __getnewargs__<'py>(&self, py: Python<'py>) -> PyResult<(Vec<String>, Bound<'py, PyAny>)> {
        Ok((self.names(), self.to_numpy(py)?))
    }

    fn __len__(&self) -> usize {
        self.inner.names().len()
    }

    fn __repr__(&self) -> String {
        let (taxa, sites) = (self.inner.names().len(), self.inner.sites());
        format!("Alignment({taxa} taxa, {sites} sites)")
    }
}

/// The alignment of several loci, and the lines that name its parts. `given` is an alignment, of
/// which `lines` names the parts, or a dict of alignments by their loci's names, all of `model`.
pub(crate) fn loci<'a>(
    given: &'a Bound<'_, PyAny>,
    lines: Option<&str>,
    model: &str,
) -> PyResult<(Cow<'a, msa::Alignment>, String)> {
    if let Ok(dict) = given.cast::<PyDict>() {
        if lines.is_some() {
            return Err(PhyloError::new_err(
                "a dict of alignments names its loci: leave out the lines of partitions",
            ));
        }
        let mut all = Vec::new();
        for (name, own) in dict {
            let own = own.cast::<Alignment>()?;
            all.push((name.extract::<String>()?, own.get().inner.clone()));
        }
        if all.is_empty() {
            return Err(PhyloError::new_err("the dict has no locus"));
        }
        let joined = msa::Alignment::concatenated(all).map_err(refuse)?;
        let text = joined.lines_of_loci(model);
        return Ok((Cow::Owned(joined), text));
    }
    let alignment = &given.cast::<Alignment>()?.get().inner;
    let lines = lines.ok_or_else(|| {
        PhyloError::new_err("give the lines of partitions, or a dict of alignments")
    })?;
    Ok((Cow::Borrowed(alignment), lines.to_owned()))
}

/// A file's content, unpacked.
pub(crate) fn input(path: &Path) -> PyResult<Input> {
    Input::read(path, Memory::new(None)).map_err(|error| match error {
        // Programs in Python expect an OSError of a file.
        InputError::Io { .. } => PyOSError::new_err(error.to_string()),
        error => refuse(error),
    })
}

/// A new, writable array of one dimension, from its elements' bytes.
pub(crate) fn array<'py>(
    py: Python<'py>,
    bytes: &[u8],
    dtype: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let numpy = py.import("numpy")?;
    let read_only = numpy.call_method1("frombuffer", (PyBytes::new(py, bytes), dtype))?;
    // An array from a buffer is a read-only view of the bytes object.
    read_only.call_method0("copy")
}

/// A new array of doubles.
pub(crate) fn doubles<'py>(py: Python<'py>, values: &[f64]) -> PyResult<Bound<'py, PyAny>> {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_ne_bytes())
        .collect();
    array(py, &bytes, "float64")
}

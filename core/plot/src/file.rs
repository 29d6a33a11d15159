//! Forms of a picture's file, by the ending of its name.
//!
//! Why here: a file must be what its name says. SVG and HTML are made here; PNG and PDF by
//! `rsvg-convert` of librsvg, since renderers of SVG are as large as the rest of the program.

use crate::PlotError;
use sidecore_sys::output;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The form of a picture's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileForm {
    /// SVG: endings that are none, `.svg`, and files without an ending.
    Svg,
    /// A page with the picture in it.
    Html,
    /// PNG, by `rsvg-convert`.
    Png,
    /// PDF, by `rsvg-convert`.
    Pdf,
}

impl FileForm {
    /// The form that a file's name asks for.
    ///
    /// # Errors
    /// [`PlotError::Form`].
    pub fn of(path: &Path) -> Result<Self, PlotError> {
        let ending = path.extension().and_then(OsStr::to_str).unwrap_or("svg");
        match ending.to_ascii_lowercase().as_str() {
            "svg" => Ok(Self::Svg),
            "html" | "htm" => Ok(Self::Html),
            "png" => Ok(Self::Png),
            "pdf" => Ok(Self::Pdf),
            _ => Err(PlotError::Form {
                ending: ending.to_owned(),
            }),
        }
    }

    /// Makes sure that the form can be made here, before the work that makes the picture.
    ///
    /// # Errors
    /// [`PlotError::NoConverter`].
    pub fn check(self) -> Result<(), PlotError> {
        match self {
            Self::Svg | Self::Html => Ok(()),
            Self::Png | Self::Pdf => {
                let mut command = Command::new(CONVERTER);
                command.arg("--version").stdout(Stdio::null());
                let ran = command.stderr(Stdio::null()).status();
                ran.map(drop)
                    .map_err(|source| PlotError::NoConverter { source })
            }
        }
    }

    /// A picture in this form. Blocks on the program for PNG and PDF.
    ///
    /// # Errors
    /// [`PlotError`].
    pub fn encode(self, svg: &str) -> Result<Vec<u8>, PlotError> {
        match self {
            Self::Svg => Ok(svg.as_bytes().to_vec()),
            Self::Html => Ok(page(svg).into_bytes()),
            Self::Png => convert(svg, "png"),
            Self::Pdf => convert(svg, "pdf"),
        }
    }
}

/// Writes a picture in the form that the file's ending asks for; `-` is standard output.
///
/// # Errors
/// [`PlotError`].
pub fn write(path: &Path, svg: &str) -> Result<(), PlotError> {
    let made = FileForm::of(path).and_then(|form| form.encode(svg));
    Ok(output::write(path, made.map_err(of_file(path))?)?)
}

/// Makes sure that [`write()`] can write there, before the work that makes the picture.
///
/// # Errors
/// [`PlotError`].
pub fn check(path: &Path) -> Result<(), PlotError> {
    let form = FileForm::of(path).and_then(FileForm::check);
    form.map_err(of_file(path))?;
    Ok(output::check(path)?)
}

fn of_file(path: &Path) -> impl FnOnce(PlotError) -> PlotError {
    let path = path.to_owned();
    move |source| PlotError::File {
        path,
        source: Box::new(source),
    }
}

/// A page that shows the picture in its width.
fn page(svg: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Sidecore</title>\n<style>svg {{ max-width: 100%; height: auto }}</style>\n\
         {svg}\n</html>\n"
    )
}

fn convert(svg: &str, format: &str) -> Result<Vec<u8>, PlotError> {
    let missing = |source| PlotError::NoConverter { source };
    let mut command = Command::new(CONVERTER);
    command.arg("--format").arg(format);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(missing)?;
    let Some(mut input) = child.stdin.take() else {
        return Err(missing(io::ErrorKind::BrokenPipe.into()));
    };
    let output = std::thread::scope(|scope| {
        // Both pipes have bounds: the picture goes in while the other comes out.
        let write = move || input.write_all(svg.as_bytes());
        let writer = std::thread::Builder::new().spawn_scoped(scope, write)?;
        let output = child.wait_with_output();
        writer.join().ok();
        output
    });
    let output = output.map_err(missing)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said
        .lines()
        .next()
        .unwrap_or("it gave no reason")
        .to_owned();
    Err(PlotError::Conversion { said })
}

const CONVERTER: &str = "rsvg-convert";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_that_of_the_ending() {
        let of = |name: &str| FileForm::of(Path::new(name)).ok();
        assert_eq!(of("a.svg"), Some(FileForm::Svg));
        assert_eq!(of("-"), Some(FileForm::Svg));
        assert_eq!(of("a.PDF"), Some(FileForm::Pdf));
        assert_eq!(of("a.b.png"), Some(FileForm::Png));
        assert_eq!(of("a.jpg"), None);
    }

    #[test]
    fn a_file_is_checked_before_it_is_written_and_named_where_it_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.svg");
        check(&path).unwrap();
        write(&path, "<svg/>").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"<svg/>");
        for refused in [check(Path::new("a.jpg")), write(Path::new("a.jpg"), "")] {
            assert_eq!(refused.unwrap_err().to_string(), "a.jpg");
        }
    }

    #[test]
    fn each_form_begins_as_it_must_or_says_what_is_missing() {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"9\" height=\"9\"></svg>";
        for (form, begin) in [
            (FileForm::Svg, &b"<svg"[..]),
            (FileForm::Html, b"<!DOCTYPE html>"),
            (FileForm::Png, b"\x89PNG"),
            (FileForm::Pdf, b"%PDF"),
        ] {
            match form.encode(svg) {
                Ok(bytes) => assert!(bytes.starts_with(begin), "{form:?}"),
                Err(error) => {
                    assert!(form.check().is_err(), "{error}");
                    assert!(error.to_string().contains("librsvg2-bin"), "{error}");
                }
            }
        }
    }
}

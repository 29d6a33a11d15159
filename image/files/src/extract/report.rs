//! Outcome of an extraction: what was made, left out or could not be made.

use crate::FilesError;
use rustix::io::Errno;
use sidecore_bare::text::bytes;
use sidecore_bare::width::ToU64;
use std::io;
use std::path::Path;

/// Outcome of an extraction.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Report {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links, devices, pipes and sockets.
    pub others: u64,
    /// Further names of files.
    pub links: u64,
    /// Bytes of regular files, holes included.
    #[serde(rename = "raw_bytes")]
    pub bytes: u64,
    /// Number of files that could not be made.
    pub failed: u64,
    /// Extended attributes that this user may not set, or the file system does not keep.
    pub attributes_left_out: u64,
    /// Files whose set-user-id and set-group-id bits were left out, for they have another owner.
    pub set_id_left_out: u64,
    /// Files that could not be made: path and reason, the first 20 of them.
    #[serde(skip)]
    pub problems: Vec<(String, String)>,
}

impl Report {
    /// All that is not as in the image, a line each.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let problems = self.problems.iter();
        let mut lines: Vec<String> = problems
            .map(|(path, reason)| format!("sidecore: {path}: {reason}"))
            .collect();
        let further = self.failed.saturating_sub(lines.len().to_u64());
        if further > 0 {
            lines.push(format!("sidecore: {further} more files were not extracted"));
        }
        if self.attributes_left_out > 0 {
            lines.push(format!(
                "{} extended attributes were left out, which this user may not set or the file \
                 system does not keep",
                self.attributes_left_out
            ));
        }
        if self.set_id_left_out > 0 {
            lines.push(format!(
                "{} files have no set-id bits, for they have another owner than in the image; \
                 extract as root to keep both",
                self.set_id_left_out
            ));
        }
        lines
    }

    /// The extraction into `folder`, which took `seconds`, on a line for people.
    #[must_use]
    pub fn line(&self, folder: &Path, seconds: f64) -> String {
        let further = match self.links {
            0 => String::new(),
            links => format!(" and {links} further names"),
        };
        format!(
            "{}: {} files{further}, {} in {seconds:.1} s",
            folder.display(),
            self.files,
            bytes(self.bytes)
        )
    }
}

/// The part of the report that one thread makes.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) report: Report,
}

impl Outcome {
    pub(super) fn failed(&mut self, path: &Path, error: &FilesError) {
        self.report.failed += 1;
        if self.report.problems.len() < PROBLEMS_MAX {
            let path = path.display().to_string();
            self.report.problems.push((path, error.to_string()));
        }
    }

    /// Judges the setting of an attribute.
    pub(super) fn attribute(
        &mut self,
        name: &[u8],
        set: rustix::io::Result<()>,
    ) -> Result<(), FilesError> {
        match set {
            Ok(()) => Ok(()),
            Err(Errno::PERM | Errno::NOTSUP | Errno::ACCESS | Errno::INVAL) => {
                self.report.attributes_left_out += 1;
                Ok(())
            }
            Err(errno) => {
                let name = String::from_utf8_lossy(name);
                let text = format!("the attribute {name}: {}", io::Error::from(errno));
                Err(FilesError::Output(io::Error::new(
                    io::Error::from(errno).kind(),
                    text,
                )))
            }
        }
    }

    pub(super) fn add(&mut self, other: Report) {
        let all = &mut self.report;
        all.files += other.files;
        all.directories += other.directories;
        all.others += other.others;
        all.links += other.links;
        all.bytes += other.bytes;
        all.attributes_left_out += other.attributes_left_out;
        all.set_id_left_out += other.set_id_left_out;
        all.failed += other.failed;
        all.problems.extend(other.problems);
        all.problems.truncate(PROBLEMS_MAX);
    }
}

/// Files with their reasons in a report.
const PROBLEMS_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_name_what_is_not_as_in_the_image() {
        let mut report = Report {
            files: 3,
            links: 1,
            bytes: 5,
            ..Report::default()
        };
        assert!(report.remarks().is_empty());
        let line = report.line(Path::new("out"), 0.25);
        assert_eq!(line, "out: 3 files and 1 further names, 5 B in 0.2 s");
        report.problems.push(("a".into(), "b".into()));
        report.failed = 4;
        report.set_id_left_out = 2;
        let remarks = report.remarks();
        assert_eq!(remarks[0], "sidecore: a: b");
        assert!(remarks[1].contains(" 3 more files"), "{remarks:?}");
        assert!(remarks[2].starts_with("2 files have no set-id bits"));
    }
}

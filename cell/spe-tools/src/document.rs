//! The two programs that the document on the Cell's address translation prints in full, extracted
//! from its text, built by the drivers, and run.
//!
//! Why here: the text is not part of this program; users that have it get the document's own
//! programs' figures next to those of `sidecore tlb`.
//!
//! Must stay true: every row is present, and without the text, a compiler or huge pages it names
//! the missing part; a program that hangs is ended.

use crate::Kit;
use serde::Serialize;
use sidecore_measure::job::{Job, JobEnd};
use sidecore_terminal::Text;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// One figure of the document's programs; `note` says why there is none.
#[derive(Debug, Serialize)]
struct DocumentRow {
    /// The walk: its kind, its pages.
    name: String,
    /// Median of the runs.
    here: Option<f64>,
    /// Greatest distance from the median, as a part of it.
    spread: Option<f64>,
    /// Unit of the median.
    unit: &'static str,
    /// The missing part, where there is no figure.
    note: Option<String>,
}

impl DocumentRow {
    /// The figure with its unit, or why there is none.
    fn said(&self) -> String {
        match (self.here, &self.note) {
            (Some(value), _) => format!("{value:.1} {}", self.unit),
            (None, note) => note.clone().unwrap_or_default(),
        }
    }
}

/// Walks: pages, and true for the SPE's DMA.
const WALKS: [(u32, bool); 4] = [(3000, false), (1, true), (14, true), (512, true)];
/// Time that a run may take.
const RUN_MAX: Duration = Duration::from_secs(60);
/// Folder of the file that the document's program maps for huge pages: a hugetlbfs. Where this
/// machine mounts it elsewhere, that folder's name replaces it.
const HUGE: &str = "/hugetlb";

/// The figures of the document's programs.
#[derive(Debug, Serialize)]
pub struct DocumentReport {
    rows: Vec<DocumentRow>,
}

impl DocumentReport {
    /// A line for each row.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        for row in &self.rows {
            text.fact(&row.name, row.said());
        }
        text
    }
}

/// Builds and runs the programs of the text in a folder, `runs` times each walk.
pub fn document_report(
    folder: Option<&Path>,
    kit: impl FnOnce() -> Result<Kit, String>,
    runs: usize,
) -> DocumentReport {
    let built = build(folder, kit);
    let mut rows = Vec::new();
    for huge in [false, true] {
        for (pages, spe) in WALKS {
            // Without programs each row says why: reports have the same rows on every machine.
            let built = built.as_ref().map_err(String::clone);
            let found = built.and_then(|built| built.measure(pages, spe, huge, runs));
            rows.push(DocumentRow::new(pages, spe, huge, found));
        }
    }
    DocumentReport { rows }
}

fn build(
    folder: Option<&Path>,
    kit: impl FnOnce() -> Result<Kit, String>,
) -> Result<Built, String> {
    let Some(folder) = folder else {
        return Err(
            "needs the document's text; name its folder by --folder or SIDECORE_DOCUMENTS".into(),
        );
    };
    let text = text(folder)?;
    let (host, spu) = programs(&text).ok_or_else(|| {
        let shown = folder.display();
        format!("the text in {shown} has not both programs whole")
    })?;
    let kit = kit()?;
    let made = tempfile::tempdir().map_err(|error| format!("cannot make a folder: {error}"))?;
    let built = Built {
        libraries: kit.programs().with_file_name("lib"),
        folder: made,
    };
    let place = built.folder.path();
    // The program has the folder's name as text.
    let host = match hugetlbfs() {
        Some(mount) => host.replace(&format!("\"{HUGE}/"), &format!("\"{mount}/")),
        None => host.to_owned(),
    };
    for (name, source) in [("tlb-ppu.c", &*host), ("tlb-spu.c", spu)] {
        let written = std::fs::write(place.join(name), format!("{source}\n"));
        written.map_err(|error| format!("cannot write {name}: {error}"))?;
    }
    let spu = ["-O2", "-o", "tlb-spu", "tlb-spu.c"];
    compile(&kit, place, "spu-gcc", &spu)?;
    let host = ["-O2", "-o", "tlb-ppu", "tlb-ppu.c", "-lspe2"];
    compile(&kit, place, "ppu-gcc", &host)?;
    Ok(built)
}

impl DocumentRow {
    fn new(pages: u32, spe: bool, huge: bool, found: Result<Vec<f64>, String>) -> Self {
        let pages = match (pages, huge) {
            (1, false) => "1 small page".to_owned(),
            (_, false) => format!("{} small pages", thousands(pages)),
            (_, true) => format!("{} x 4 KiB in huge pages", thousands(pages)),
        };
        let walk = if spe { "SPE's DMA" } else { "PPE's load" };
        let mut row = Self {
            name: format!("{walk}, {pages}"),
            here: None,
            spread: None,
            unit: "cycles",
            note: None,
        };
        match found {
            Ok(mut costs) => {
                costs.sort_by(f64::total_cmp);
                // A machine under load costs more, never less: a mean would move with it.
                let median = costs[costs.len() / 2];
                let farthest = (costs[costs.len() - 1] - median).max(median - costs[0]);
                row.here = Some(median);
                row.spread = Some(farthest / median);
            }
            Err(why) => row.note = Some(why),
        }
        row
    }
}

fn thousands(number: u32) -> String {
    match number {
        1000.. => format!("{},{:03}", number / 1000, number % 1000),
        _ => number.to_string(),
    }
}

/// The text with both programs.
fn text(folder: &Path) -> Result<String, String> {
    let shown = folder.display();
    let files = std::fs::read_dir(folder);
    let files = files.map_err(|error| format!("cannot read {shown}: {error}"))?;
    let texts = files
        .flatten()
        // Pictures and archives in the same folder are no text.
        .filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let found = texts.into_iter().find(|text| text.contains(MARK));
    found.ok_or_else(|| {
        format!("no file in {shown} is the document on the Cell's TLBs: none has its program")
    })
}

/// A call that the document's host program has, and no other text.
const MARK: &str = "spe_image_open(\"tlb-spu\")";

/// The host's program and the SPU's: each begins with its first header and ends with main's brace.
fn programs(text: &str) -> Option<(&str, &str)> {
    let host = text.find("#include <stdlib.h>")?;
    let spu = host + text[host..].find("#include <spu_mfcio.h>")?;
    // Braces of functions stand at a line's start, inner ones behind blanks.
    let end = spu + text[spu..].find("\n}")? + 2;
    let first = &text[host..spu];
    Some((&first[..=first.rfind('}')?], &text[spu..end]))
}

fn compile(kit: &Kit, folder: &Path, driver: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(kit.programs().join(driver))
        .args(arguments)
        .current_dir(folder)
        .output()
        .map_err(|error| format!("cannot run {driver}: {error}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    // Warnings come first, about a program that is taken as it is.
    let first = errors.lines().find(|line| line.contains("error"));
    let first = first.or(errors.lines().next()).unwrap_or_default();
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{driver} does not build it: {first}")),
    }
}

/// Built programs.
struct Built {
    libraries: PathBuf,
    folder: tempfile::TempDir,
}

impl Built {
    /// Cycles an access, of each run.
    fn measure(&self, pages: u32, spe: bool, huge: bool, runs: usize) -> Result<Vec<f64>, String> {
        if huge {
            huge_pages_are_there()?;
        }
        (0..runs).map(|_| self.once(pages, spe, huge)).collect()
    }

    fn once(&self, pages: u32, spe: bool, huge: bool) -> Result<f64, String> {
        let numbers = [pages, pages + 1, huge.into(), spe.into()].map(|number| number.to_string());
        let mut command = Command::new(self.folder.path().join("tlb-ppu"));
        command
            .args(numbers)
            .current_dir(self.folder.path())
            .env("LD_LIBRARY_PATH", &self.libraries);
        let job = Job::start(&mut command);
        // Its SPE loops for ever where a message of its host is lost.
        let ended = job.and_then(|job| job.wait(RUN_MAX, &AtomicBool::new(false), &mut |_| {}));
        let output = match ended {
            Ok(JobEnd::Ended { status, output, .. }) if status.success() => output,
            Ok(JobEnd::Ended { status, .. }) => {
                return Err(format!("the document's program ended with {status}"));
            }
            Ok(JobEnd::TooLong | JobEnd::Stopped) => {
                let seconds = RUN_MAX.as_secs();
                return Err(format!(
                    "the document's program ran longer than {seconds} s"
                ));
            }
            Err(error) => return Err(format!("cannot run the document's program: {error}")),
        };
        let printed = String::from_utf8_lossy(&output);
        let cost = printed
            .split_once(": ")
            .and_then(|(_, cost)| cost.trim().parse().ok());
        let cost = cost.filter(|cost: &f64| cost.is_finite() && *cost > 0.0);
        cost.ok_or_else(|| format!("the document's program printed {printed:?}"))
    }
}

/// A folder of huge pages that this user may write to: the document's own, or the first one of
/// the usual size that is mounted.
fn hugetlbfs() -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let found = folders_of_huge_pages(&mounts);
    let usable = |folder: &&str| rustix::fs::access(*folder, rustix::fs::Access::WRITE_OK).is_ok();
    let own = found.iter().find(|folder| **folder == HUGE);
    let any = own.filter(|folder| usable(folder));
    any.or_else(|| found.iter().find(|folder| usable(folder)))
        .map(|folder| (*folder).to_owned())
}

/// Folders of a list of mounts that have huge pages of 2 MiB, or of the usual size.
fn folders_of_huge_pages(mounts: &str) -> Vec<&str> {
    let each = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (folder, kind, options) = (words.nth(1)?, words.next()?, words.next()?);
        let other = options
            .split(',')
            .filter_map(|option| option.strip_prefix("pagesize="))
            .any(|size| size != "2M");
        // The program's text cannot hold a name with blanks or quotes.
        let plain = !folder.contains(['\\', '"']);
        (kind == "hugetlbfs" && !other && plain).then_some(folder)
    });
    each.collect()
}

/// The program maps 16 MiB of a file there, whatever the page size.
fn huge_pages_are_there() -> Result<(), String> {
    if hugetlbfs().is_none() {
        return Err(format!(
            "the document's program maps a file in {HUGE}: mkdir {HUGE} && mount -t hugetlbfs \
             none {HUGE} && sysctl vm.nr_hugepages=8"
        ));
    }
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let free = number("HugePages_Free:").unwrap_or(0) * number("Hugepagesize:").unwrap_or(0);
    match free {
        16_384.. => Ok(()),
        _ => Err(format!(
            "the document's program needs 16 MiB of huge pages, {} MiB are free: sysctl \
             vm.nr_hugepages=8",
            free / 1024
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_are_found_in_a_text() {
        let text = "1 Words\n#include <stdlib.h>\nint main()\n{\n\tspe_image_open(\"tlb-spu\");\n\
                    }\nmore words\n#include <spu_mfcio.h>\nint main()\n{\n\tif (1) {\n\t}\n\
                    }\nthe end";
        let (host, spu) = programs(text).unwrap();
        assert!(host.starts_with("#include <stdlib.h>") && host.ends_with(";\n}"));
        assert!(spu.starts_with("#include <spu_mfcio.h>") && spu.ends_with("\t}\n}"));
        assert_eq!(programs("#include <stdlib.h> and nothing more"), None);
    }

    #[test]
    fn folders_of_huge_pages_are_read_from_the_mounts() {
        let mounts = "proc /proc proc rw 0 0\n\
                      none /mnt/big hugetlbfs rw,relatime,pagesize=1024M 0 0\n\
                      hugetlbfs /dev/hugepages hugetlbfs rw,nosuid,pagesize=2M 0 0\n\
                      none /a\\040b hugetlbfs rw 0 0\n\
                      none /hugetlb hugetlbfs rw,relatime 0 0\n";
        assert_eq!(
            folders_of_huge_pages(mounts),
            ["/dev/hugepages", "/hugetlb"]
        );
    }

    #[test]
    fn a_row_says_its_figure_or_what_is_missing() {
        let row = DocumentRow::new(3000, false, false, Ok(vec![9.0, 10.0, 12.0]));
        assert_eq!(row.name, "PPE's load, 3,000 small pages");
        assert_eq!((row.here, row.spread), (Some(10.0), Some(0.2)));
        let row = DocumentRow::new(512, true, true, Err("no text".into()));
        assert_eq!(row.name, "SPE's DMA, 512 x 4 KiB in huge pages");
        assert_eq!((row.here, row.note.as_deref()), (None, Some("no text")));
    }
}

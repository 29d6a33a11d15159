//! `sidecore spe document`: the two programs that the document on the Cell's address translation
//! prints in full, extracted from its text, built by the drivers, and run.
//!
//! Why here: the text is not part of this program; users that have it get the document's own
//! programs' figures next to those of `sidecore tlb`.
//!
//! Must stay true: every row is present, and without the text, a compiler or huge pages it names
//! the missing part; a program that hangs is killed.

use crate::Outcome;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use sidecore_spe_tools::Kit;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `spe document`.
#[derive(clap::Args)]
#[command(after_help = "\
The programs count the time base's ticks times 40: cycles of 3.19 GHz. Rows that cannot be \
measured say why.

Exit status: 0 printed, also where rows say why they have no figure; 2 could not run.")]
pub(crate) struct Document {
    /// Folder that holds the document's text [default: the one that SIDECORE_DOCUMENTS names]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// One run of each instead of nine
    #[arg(long)]
    quick: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    rows: Vec<Row>,
}

/// One figure; `note` says why there is none.
#[derive(Serialize)]
struct Row {
    name: String,
    here: Option<f64>,
    /// Greatest distance from the median, as a part of it.
    spread: Option<f64>,
    unit: &'static str,
    note: Option<String>,
}

/// Walks: pages, and true for the SPE's DMA.
const WALKS: [(u32, bool); 4] = [(3000, false), (1, true), (14, true), (512, true)];
const RUNS: usize = 9;
/// Time that a run may take.
const RUN_MAX: Duration = Duration::from_secs(60);
/// Folder of the file that the document's program maps for huge pages: a hugetlbfs. Where this
/// machine mounts it elsewhere, that folder's name replaces it.
const HUGE: &str = "/hugetlb";

impl Document {
    pub(crate) fn run(self) -> Result<Outcome> {
        let built = self.build();
        let runs = if self.quick { 1 } else { RUNS };
        let mut rows = Vec::new();
        for huge in [false, true] {
            for (pages, spe) in WALKS {
                let found = match &built {
                    Ok(built) => built.measure(pages, spe, huge, runs),
                    Err(error) => bail_again(error),
                };
                rows.push(Row::new(pages, spe, huge, found));
            }
        }
        if self.json {
            output::json(&Report { rows })?;
            return Ok(Outcome::Done);
        }
        for row in rows {
            let said = match (row.here, row.note) {
                (Some(value), _) => format!("{value:.1} {}", row.unit),
                (None, note) => note.unwrap_or_default(),
            };
            output::line(&format!("{:<40} {said}", row.name))?;
        }
        Ok(Outcome::Done)
    }

    fn build(&self) -> Result<Built> {
        let given = self.folder.clone();
        let named = std::env::var_os("SIDECORE_DOCUMENTS").filter(|name| !name.is_empty());
        let named = named.map(PathBuf::from);
        let Some(folder) = given.or(named) else {
            bail!("needs the document's text; name its folder by --folder or SIDECORE_DOCUMENTS");
        };
        let text = text(&folder)?;
        let (host, spu) = programs(&text).with_context(|| {
            format!(
                "the text in {} has not both programs whole",
                folder.display()
            )
        })?;
        let kit = super::kit()?;
        let built = Built {
            libraries: kit.programs().with_file_name("lib"),
            folder: tempfile::tempdir().context("cannot make a folder")?,
        };
        let place = built.folder.path();
        let host = match hugetlbfs() {
            Some(mount) => host.replace(&format!("\"{HUGE}/"), &format!("\"{mount}/")),
            None => host.to_owned(),
        };
        std::fs::write(place.join("tlb-ppu.c"), format!("{host}\n"))?;
        std::fs::write(place.join("tlb-spu.c"), format!("{spu}\n"))?;
        compile(
            &kit,
            place,
            "spu-gcc",
            &["-O2", "-o", "tlb-spu", "tlb-spu.c"],
        )?;
        let host = ["-O2", "-o", "tlb-ppu", "tlb-ppu.c", "-lspe2"];
        compile(&kit, place, "ppu-gcc", &host)?;
        Ok(built)
    }
}

/// The same error for another row.
fn bail_again<T>(error: &anyhow::Error) -> Result<T> {
    bail!("{}", output::chain(error))
}

impl Row {
    fn new(pages: u32, spe: bool, huge: bool, found: Result<Vec<f64>>) -> Row {
        let pages = match (pages, huge) {
            (1, false) => "1 small page".to_owned(),
            (_, false) => format!("{} small pages", thousands(pages)),
            (_, true) => format!("{} x 4 KiB in huge pages", thousands(pages)),
        };
        let walk = if spe { "SPE's DMA" } else { "PPE's load" };
        let mut row = Row {
            name: format!("{walk}, {pages}"),
            here: None,
            spread: None,
            unit: "cycles",
            note: None,
        };
        match found {
            Ok(mut costs) => {
                costs.sort_by(f64::total_cmp);
                let median = costs[costs.len() / 2];
                let farthest = (costs[costs.len() - 1] - median).max(median - costs[0]);
                row.here = Some(median);
                row.spread = Some(farthest / median);
            }
            Err(error) => row.note = Some(output::chain(&error)),
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
fn text(folder: &Path) -> Result<String> {
    let files = std::fs::read_dir(folder);
    let files = files.with_context(|| format!("cannot read {}", folder.display()))?;
    let texts = files
        .flatten()
        .filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let found = texts.into_iter().find(|text| text.contains(MARK));
    found.with_context(|| {
        format!(
            "no file in {} is the document on the Cell's TLBs: none has its program",
            folder.display()
        )
    })
}

/// A call that the document's host program has, and no other text.
const MARK: &str = "spe_image_open(\"tlb-spu\")";

/// The host's program and the SPU's: each begins with its first header and ends with main's brace.
fn programs(text: &str) -> Option<(&str, &str)> {
    let host = text.find("#include <stdlib.h>")?;
    let spu = host + text[host..].find("#include <spu_mfcio.h>")?;
    let end = spu + text[spu..].find("\n}")? + 2;
    let first = &text[host..spu];
    Some((&first[..=first.rfind('}')?], &text[spu..end]))
}

fn compile(kit: &Kit, folder: &Path, driver: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(kit.programs().join(driver))
        .args(arguments)
        .current_dir(folder)
        .output()
        .with_context(|| format!("cannot run {driver}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let first = errors.lines().find(|line| line.contains("error"));
    let first = first.or(errors.lines().next()).unwrap_or_default();
    ensure!(
        output.status.success(),
        "{driver} does not build it: {first}"
    );
    Ok(())
}

/// Built programs.
struct Built {
    libraries: PathBuf,
    folder: tempfile::TempDir,
}

impl Built {
    /// Cycles an access, of each run.
    fn measure(&self, pages: u32, spe: bool, huge: bool, runs: usize) -> Result<Vec<f64>> {
        if huge {
            huge_pages_are_there()?;
        }
        (0..runs).map(|_| self.once(pages, spe, huge)).collect()
    }

    fn once(&self, pages: u32, spe: bool, huge: bool) -> Result<f64> {
        let numbers = [pages, pages + 1, huge.into(), spe.into()].map(|number| number.to_string());
        let mut child = Command::new(self.folder.path().join("tlb-ppu"))
            .args(numbers)
            .current_dir(self.folder.path())
            .env("LD_LIBRARY_PATH", &self.libraries)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run the document's program")?;
        let begun = Instant::now();
        while child.try_wait()?.is_none() {
            if begun.elapsed() > RUN_MAX {
                child.kill().ok();
                child.wait().ok();
                bail!(
                    "the document's program ran longer than {} s",
                    RUN_MAX.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        // It prints one line, so that a pipe holds it.
        let output = child.wait_with_output()?;
        ensure!(
            output.status.success(),
            "the document's program ended with {}",
            output.status
        );
        let printed = String::from_utf8_lossy(&output.stdout);
        let cost = printed
            .split_once(": ")
            .and_then(|(_, cost)| cost.trim().parse().ok());
        let cost = cost.filter(|cost: &f64| cost.is_finite() && *cost > 0.0);
        cost.with_context(|| format!("the document's program printed {printed:?}"))
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
fn huge_pages_are_there() -> Result<()> {
    ensure!(
        hugetlbfs().is_some(),
        "the document's program maps a file in {HUGE}: mkdir {HUGE} && mount -t hugetlbfs none \
         {HUGE} && sysctl vm.nr_hugepages=8"
    );
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let free = number("HugePages_Free:").unwrap_or(0) * number("Hugepagesize:").unwrap_or(0);
    ensure!(
        free >= 16 * 1024,
        "the document's program needs 16 MiB of huge pages, {} MiB are free: sysctl \
         vm.nr_hugepages=8",
        free / 1024
    );
    Ok(())
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
        let row = Row::new(3000, false, false, Ok(vec![9.0, 10.0, 12.0]));
        assert_eq!(row.name, "PPE's load, 3,000 small pages");
        assert_eq!((row.here, row.spread), (Some(10.0), Some(0.2)));
        let row = Row::new(512, true, true, bail_again(&anyhow::anyhow!("no text")));
        assert_eq!(row.name, "SPE's DMA, 512 x 4 KiB in huge pages");
        assert_eq!((row.here, row.note.as_deref()), (None, Some("no text")));
    }
}

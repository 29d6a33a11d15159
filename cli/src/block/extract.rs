//! `sidecore block extract`.

use super::files::{TreeArgs, missing, wanted, write_wanted};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_files::walk::Wanted;
use sidecore_files::{Options, Report, Tree, archive, extract};
use sidecore_sys::folder::Folder;
use sidecore_sys::text::bytes;
use sidecore_terminal::progress::{Shape, bar};
use sidecore_terminal::quantity;
use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Arguments of `block extract`.
#[derive(clap::Args)]
#[command(after_help = "\
Reads erofs, squashfs and ext2 to ext4, as any user and without a mount. Nothing outside of DIR is \
written, whatever is in the image or in DIR: no link is followed. Files that are there already \
stay, and are reported, without --overwrite.

Root restores owners, devices, set-id bits and all extended attributes; other users what they may.

Exit status: 0 extracted, 1 some files were not, 2 could not read the image or write.

Examples:
  sidecore block extract doc.img -C out
  sidecore block extract https://example.org/root.img 'etc/**/*.conf' -C out
  sidecore block extract root.img --tar usr/share/doc | tar -t")]
pub(crate) struct Args {
    #[command(flatten)]
    tree: TreeArgs,
    /// Files and directories in the image, from its root; patterns as in `block ls` [default: all]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Directory to extract to; made if it is not there
    #[arg(short = 'C', long, value_name = "DIR")]
    #[arg(required_unless_present_any = ["to_stdout", "tar"])]
    directory: Option<PathBuf>,
    /// Write the contents of all files to standard output, one after the other
    #[arg(long, conflicts_with_all = ["directory", "tar", "json", "owner", "overwrite"])]
    to_stdout: bool,
    /// Write a tar to standard output
    #[arg(long, conflicts_with_all = ["directory", "json", "overwrite"])]
    tar: bool,
    /// Replace files that are there already
    #[arg(long)]
    overwrite: bool,
    /// Give all files this owner and group, by their numbers
    #[arg(long, value_name = "UID:GID", value_parser = parse_owner)]
    owner: Option<(u32, u32)>,
    /// Write at most this many bytes, holes not counted, and end with an error where there are more
    #[arg(long, value_name = "SIZE", value_parser = quantity::size, default_value = "1TiB")]
    limit: u64,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let tree = self.tree.open()?;
        let mut wanted = wanted(&self.paths)?;
        if self.to_stdout {
            contents(&*tree, &mut wanted)?;
            return Ok(missing(wanted.missing()));
        }
        let Some(directory) = &self.directory else {
            let mut stdout = BufWriter::with_capacity(256 << 10, std::io::stdout().lock());
            archive(&*tree, &mut wanted, self.owner, &mut stdout)?;
            return Ok(missing(wanted.missing()));
        };
        std::fs::create_dir_all(directory)
            .and_then(|()| Folder::open(directory))
            .with_context(|| format!("cannot extract to {}", directory.display()))
            .and_then(|folder| self.extract(&*tree, &mut wanted, &folder))
    }

    fn extract(&self, tree: &dyn Tree, wanted: &mut Wanted, into: &Folder) -> Result<Outcome> {
        let began = Instant::now();
        let mut options = Options::new(self.tree.open.engines.count());
        options.overwrite = self.overwrite;
        options.owner = self.owner;
        options.bytes_max = self.limit;
        let written = AtomicU64::new(0);
        let bar = bar(Shape::Bytes, 0);
        bar.set_message("extracting");
        let report = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("extracting".to_owned());
            let work =
                thread.spawn_scoped(scope, || extract(tree, wanted, into, options, &written))?;
            while !work.is_finished() {
                let done = written.load(Ordering::Relaxed);
                // The whole is not known before the end.
                bar.set_length(done);
                bar.set_position(done);
                std::thread::park_timeout(SHOWN_EVERY);
            }
            Ok::<_, std::io::Error>(work.join())
        });
        bar.finish_and_clear();
        let report = match report.context("cannot start a thread")? {
            Ok(report) => report?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let seconds = began.elapsed().as_secs_f64();
        tell(&report);
        if self.json {
            output::json(&Json::new(&report, seconds))?;
        } else {
            let Report { files, links, .. } = report;
            let (directory, size) = (into.path().display(), bytes(report.bytes));
            let further = match links {
                0 => String::new(),
                links => format!(" and {links} further names"),
            };
            output::line(&format!(
                "{directory}: {files} files{further}, {size} in {seconds:.1} s"
            ))?;
        }
        match (missing(wanted.missing()), report.failed) {
            (Outcome::Done, 0) => Ok(Outcome::Done),
            _ => Ok(Outcome::Problem),
        }
    }
}

/// Reports what is not as in the image.
fn tell(report: &Report) {
    for (path, reason) in &report.problems {
        output::note!("sidecore: {path}: {reason}");
    }
    let further = report.failed - report.problems.len() as u64;
    if further > 0 {
        output::note!("sidecore: {further} more files were not extracted");
    }
    let Report {
        attributes_left_out,
        set_id_left_out,
        ..
    } = report;
    if *attributes_left_out > 0 {
        output::note!(
            "{attributes_left_out} extended attributes were left out, which this user may not set \
             or the file system does not keep"
        );
    }
    if *set_id_left_out > 0 {
        output::note!(
            "{set_id_left_out} files have no set-id bits, for they have another owner than in the \
             image; extract as root to keep both"
        );
    }
}

fn contents(tree: &dyn Tree, wanted: &mut Wanted) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    write_wanted(tree, wanted, &mut stdout)?;
    Ok(stdout.flush()?)
}

pub(super) fn parse_owner(text: &str) -> Result<(u32, u32), String> {
    let owner = text.split_once(':').and_then(|(uid, gid)| {
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        // The system takes the largest number for "leave it as it is".
        (uid != u32::MAX && gid != u32::MAX).then_some((uid, gid))
    });
    owner.ok_or_else(|| "must be two numbers, as in 1000:1000".to_owned())
}

#[derive(serde::Serialize)]
struct Json {
    files: u64,
    directories: u64,
    others: u64,
    links: u64,
    raw_bytes: u64,
    failed: u64,
    attributes_left_out: u64,
    set_id_left_out: u64,
    seconds: f64,
}

impl Json {
    fn new(report: &Report, seconds: f64) -> Self {
        Self {
            files: report.files,
            directories: report.directories,
            others: report.others,
            links: report.links,
            raw_bytes: report.bytes,
            failed: report.failed,
            attributes_left_out: report.attributes_left_out,
            set_id_left_out: report.set_id_left_out,
            seconds,
        }
    }
}

/// Time between two pictures of the progress.
const SHOWN_EVERY: Duration = Duration::from_millis(100);

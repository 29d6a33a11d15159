//! `sidecore block unpack`.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_block::pack::{Unpacked, Work, unpack_image};
use sidecore_sys::text::bytes;
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `block unpack`.
#[derive(clap::Args)]
#[command(after_help = "\
The file appears under its name only when it is whole, with holes where the contents are zeros. A \
damaged frame ends it, and nothing is written; `sidecore block verify` says which \
frames are damaged.")]
pub(crate) struct Args {
    /// Image to unpack: a file or a URL
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    access: super::image::AccessArgs,
    /// File to write; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    engines: super::common::Engines,
    #[command(flatten)]
    whole: super::common::WholeArgs,
    /// Refuse when the file exists already
    #[arg(long, conflicts_with = "force")]
    no_clobber: bool,
    /// Write straight onto FILE though it is no regular file (a block device)
    #[arg(long)]
    force: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let to_stdout = self.output.as_os_str() == "-";
        anyhow::ensure!(
            !(to_stdout && self.json),
            "standard output cannot take both the contents and the report; \
             leave out --json or name a file with -o"
        );
        let began = Instant::now();
        let memory = self.whole.memory();
        let access = self.access.access()?;
        let opened = memory.open(|bytes| access.open_whole(&self.image, bytes))?;
        let bar = super::common::image_progress(&opened, "unpacking");
        let target = super::common::target(&self.output, self.no_clobber, self.force);
        let engines = self.engines.count();
        let work = Work::of(engines, self.whole.limits(&opened));
        let unpacked = unpack_image(&opened.image, &opened.index, target, work, &mut |done| {
            bar.set_position(done)
        });
        bar.finish_and_clear();
        let unpacked = unpacked?;
        let seconds = began.elapsed().as_secs_f64();
        if self.json {
            output::json(&Json {
                unpacked,
                engines,
                seconds,
            })?;
        } else if !to_stdout {
            let (path, bytes) = (self.output.display(), bytes(unpacked.raw_bytes));
            output::line(&format!("{path}: {bytes} in {seconds:.1} s"))?;
        }
        Ok(Outcome::Done)
    }
}

#[derive(serde::Serialize)]
struct Json {
    #[serde(flatten)]
    unpacked: Unpacked,
    engines: usize,
    seconds: f64,
}

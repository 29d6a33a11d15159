//! `sidecore block unpack`.

use super::common::{AccessArgs, Engines, WholeArgs, target, written};
use crate::Outcome;
use crate::output::Timed;
use anyhow::Result;
use sidecore_block::pack::{Work, unpack_image};
use sidecore_sys::text::bytes;
use sidecore_terminal::progress::watched;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image to unpack: a file or a URL; `-` is standard input
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    access: AccessArgs,
    /// File to write; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    whole: WholeArgs,
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
    pub(crate) fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let memory = self.whole.memory();
        let access = self.access.access()?;
        let opened = memory.open(|bytes| access.open_whole(&self.image, bytes))?;
        let target = target(&self.output, self.no_clobber, self.force);
        let engines = self.engines.count();
        let work = Work::of(engines, self.whole.limits(&opened));
        let (image, index) = (&opened.image, &opened.index);
        let unpacked = watched(Some(index.raw_bytes()), "unpacking", |on_bytes| {
            unpack_image(image, index, target, work, on_bytes)
        })?;
        let timed = Timed {
            report: unpacked,
            engines: Some(engines),
            seconds: began.elapsed().as_secs_f64(),
        };
        written(&self.output, self.json, &timed, |unpacked, seconds| {
            let (path, bytes) = (self.output.display(), bytes(unpacked.raw_bytes));
            format!("{path}: {bytes} in {seconds:.1} s").into()
        })
    }
}

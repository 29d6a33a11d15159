//! `sidecore block export`.

use super::common::{OpenArgs, TimeArgs, target, written};
use crate::Outcome;
use crate::output::Timed;
use anyhow::Result;
use sidecore_block::pack::{FlatFormat, Limits, Work, export};
use sidecore_sys::text::bytes;
use sidecore_terminal::progress::watched;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = "\
Without --qcow2 the file holds the bytes as they are, with holes where they are zeros. The qcow2 \
image has no backing file and is not compressed.")]
pub(crate) struct Args {
    #[command(flatten)]
    open: OpenArgs,
    /// Contents with the writes in this overlay
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
    /// Write a qcow2 image
    #[arg(long)]
    qcow2: bool,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    time: TimeArgs,
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
        let to_stdout = self.output.as_os_str() == "-";
        anyhow::ensure!(
            !to_stdout || !(self.qcow2 || self.json),
            "standard output takes the plain contents only; name a file with -o"
        );
        let began = Instant::now();
        let (device, source) = self.open.source(self.overlay.as_deref())?;
        if device.index().lock().is_some() || self.open.domain().is_some() {
            let path = self.output.display().to_string();
            let place = if to_stdout { "standard output" } else { &path };
            tracing::warn!("the image is encrypted; {place} is in the clear");
        }
        let format = match self.qcow2 {
            true => FlatFormat::Qcow2,
            false => FlatFormat::Raw,
        };
        let target = target(&self.output, self.no_clobber, self.force);
        let limits = Limits {
            deadline: self.time.deadline(),
            ..Limits::default()
        };
        let work = Work::of(self.open.engines.count(), limits);
        let exported = watched(Some(source.size_bytes()), "exporting", |on_bytes| {
            export(&*source, target, format, work, on_bytes)
        })?;
        let timed = Timed {
            report: exported,
            engines: None,
            seconds: began.elapsed().as_secs_f64(),
        };
        written(&self.output, self.json, &timed, |exported, seconds| {
            let (path, raw) = (self.output.display(), bytes(exported.raw_bytes));
            format!("{path}: {raw} in {seconds:.1} s").into()
        })
    }
}

//! `sidecore block export`.

use super::common::{OpenArgs, open_device};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_block::overlay::open_to_read;
use sidecore_block::pack::{Exported, FlatFormat, Limits, Work, export};
use sidecore_block::source::BlockSource;
use sidecore_sys::text::bytes;
use sidecore_terminal::progress::{Shape, bar};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Arguments of `block export`.
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
    time: super::common::TimeArgs,
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
            !to_stdout || !(self.qcow2 || self.json),
            "standard output takes the plain contents only; name a file with -o"
        );
        let began = Instant::now();
        let device = open_device(&self.open)?;
        if device.index().lock().is_some() {
            let path = self.output.display();
            tracing::warn!(
                "the image is encrypted; {} is in the clear",
                if to_stdout {
                    "standard output".into()
                } else {
                    path.to_string()
                }
            );
        }
        let source: Arc<dyn BlockSource> = match &self.overlay {
            Some(path) => Arc::new(open_to_read(device, path)?),
            None => device,
        };
        let format = match self.qcow2 {
            true => FlatFormat::Qcow2,
            false => FlatFormat::Raw,
        };
        let bar = bar(Shape::Bytes, source.size_bytes());
        bar.set_message("exporting");
        let target = super::common::target(&self.output, self.no_clobber, self.force);
        let limits = Limits {
            deadline: self.time.deadline(),
            ..Limits::default()
        };
        let work = Work::of(self.open.engines.count(), limits);
        let exported = export(&*source, target, format, work, &mut |done| {
            bar.set_position(done)
        });
        bar.finish_and_clear();
        let exported = exported?;
        let seconds = began.elapsed().as_secs_f64();
        if self.json {
            output::json(&Json { exported, seconds })?;
        } else if !to_stdout {
            let (path, raw) = (self.output.display(), bytes(exported.raw_bytes));
            output::line(&format!("{path}: {raw} in {seconds:.1} s"))?;
        }
        Ok(Outcome::Done)
    }
}

#[derive(serde::Serialize)]
struct Json {
    #[serde(flatten)]
    exported: Exported,
    seconds: f64,
}

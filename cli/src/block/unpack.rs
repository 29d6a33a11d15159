//! `sidecore block unpack`, `verify` and `export`: an image from its first byte to its last.

use super::common::{AccessArgs, ContentsArgs, Engines, OutputArgs, TimeArgs, WholeArgs};
use crate::Outcome;
use crate::output::{JsonArgs, Timed};
use anyhow::{Context, Result};
use sidecore_block::pack::{
    Exported, FlatFormat, Limits, Unpacked, Work, export, unpack_image, verify_image,
};
use sidecore_remote::access::{Opened, name};
use sidecore_terminal::progress::watched;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A walk over a whole image.
#[derive(clap::Args)]
struct WalkArgs {
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    whole: WholeArgs,
}

impl WalkArgs {
    /// Opens the image; the time of the walk begins then.
    fn open(&self, image: &Path) -> Result<(Opened, Work)> {
        let memory_bytes = self.whole.memory.bytes;
        let opened = self.access.access()?.open_whole(image, memory_bytes)?;
        let limits = opened.limits(self.whole.limits());
        Ok((opened, Work::of(self.engines.count(), limits)))
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image to unpack: a file or a URL; `-` is standard input
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    walk: WalkArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let (opened, work) = self.walk.open(&self.image)?;
        let target = self.output.target();
        let (image, index) = (&opened.image, &opened.index);
        let unpacked = watched(Some(index.raw_bytes()), "unpacking", |on_bytes| {
            unpack_image(image, index, target, work, on_bytes)
        })?;
        let timed = Timed::since(began, Some(work.engines), unpacked);
        self.output.report(&timed, Unpacked::text)
    }
}

#[derive(clap::Args)]
pub(crate) struct VerifyArgs {
    /// Image to verify: a file or a URL; `-` is standard input
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    walk: WalkArgs,
    #[command(flatten)]
    form: JsonArgs,
}

impl VerifyArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let (opened, work) = self.walk.open(&self.image)?;
        let (image, index) = (&opened.image, &opened.index);
        let mut verified = watched(Some(index.raw_bytes()), "verifying", |on_bytes| {
            verify_image(image, index, work, on_bytes)
        })?;
        let compared = opened.check_sha256();
        verified.digest_matches = compared.context("cannot compare the layer's digest")?;
        let outcome = Outcome::of(verified.is_sound());
        let timed = Timed::since(began, Some(work.engines), verified);
        self.form.report(&timed, |timed| {
            timed.report.text(&name(&self.image), timed.seconds)
        })?;
        Ok(outcome)
    }
}

#[derive(clap::Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    contents: ContentsArgs,
    /// Write a qcow2 image
    #[arg(long)]
    qcow2: bool,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    output: OutputArgs,
}

impl ExportArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let to_stdout = self.output.is_stdout();
        anyhow::ensure!(
            !to_stdout || !(self.qcow2 || self.output.json),
            "standard output takes the plain contents only; name a file with -o"
        );
        let began = Instant::now();
        let (device, source) = self.contents.source()?;
        let open = &self.contents.open;
        if device.index().lock().is_some() || open.domain().is_some() {
            let path = self.output.path().display().to_string();
            let place = if to_stdout { "standard output" } else { &path };
            tracing::warn!("the image is encrypted; {place} is in the clear");
        }
        let format = match self.qcow2 {
            true => FlatFormat::Qcow2,
            false => FlatFormat::Raw,
        };
        let target = self.output.target();
        let limits = self.time.limits(Limits::MEMORY_BYTES_DEFAULT);
        let work = Work::of(open.engines.count(), limits);
        let exported = watched(Some(source.size_bytes()), "exporting", |on_bytes| {
            export(&*source, target, format, work, on_bytes)
        })?;
        let timed = Timed::since(began, None, exported);
        self.output.report(&timed, Exported::text)
    }
}

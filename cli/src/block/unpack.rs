//! `sidecore block unpack`, `verify` and `export`: an image from its first byte to its last.

use super::common::{AccessArgs, Engines, OpenArgs, TimeArgs, WholeArgs, target, written};
use crate::output::Timed;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::pack::{
    FlatFormat, Limits, VerifiedReport, Work, export, unpack_image, verify_image,
};
use sidecore_remote::access::name;
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
        let timed = Timed::since(began, Some(engines), unpacked);
        written(&self.output, self.json, &timed, |unpacked, seconds| {
            let (path, bytes) = (self.output.display(), bytes(unpacked.raw_bytes));
            format!("{path}: {bytes} in {seconds:.1} s").into()
        })
    }
}

#[derive(clap::Args)]
pub(crate) struct VerifyArgs {
    /// Image to verify: a file or a URL; `-` is standard input
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    whole: WholeArgs,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl VerifyArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let memory = self.whole.memory();
        let access = self.access.access()?;
        let opened = memory.open(|bytes| access.open_whole(&self.image, bytes))?;
        let engines = self.engines.count();
        let (image, index) = (&opened.image, &opened.index);
        let work = Work::of(engines, self.whole.limits(&opened));
        let verified = watched(Some(index.raw_bytes()), "verifying", |on_bytes| {
            verify_image(image, index, work, on_bytes)
        })?;
        let digest = opened.remote.as_ref().map(|remote| remote.check_sha256());
        let digest = digest
            .transpose()
            .context("cannot compare the layer's digest")?
            .flatten();
        let outcome = Outcome::of(verified.is_sound() && digest != Some(false));
        let seconds = began.elapsed().as_secs_f64();
        if self.json {
            output::json(&Timed::<VerifiedReport> {
                report: verified.report(digest),
                engines: Some(engines),
                seconds,
            })?;
            return Ok(outcome);
        }
        let mut text = verified.text(&name(&self.image), seconds);
        match digest {
            None => {}
            Some(true) => text.line("the layer has the digest that its manifest names"),
            Some(false) => text.line("the layer does not have the digest of its manifest"),
        }
        output::show(&text)?;
        Ok(outcome)
    }
}

#[derive(clap::Args)]
pub(crate) struct ExportArgs {
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

impl ExportArgs {
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
        let timed = Timed::since(began, None, exported);
        written(&self.output, self.json, &timed, |exported, seconds| {
            let (path, raw) = (self.output.display(), bytes(exported.raw_bytes));
            format!("{path}: {raw} in {seconds:.1} s").into()
        })
    }
}

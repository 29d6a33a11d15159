//! `sidecore block verify`.

use super::common::{AccessArgs, Engines, WholeArgs};
use crate::Outcome;
use crate::output::{self, Timed};
use anyhow::{Context, Result};
use sidecore_block::pack::{VerifiedReport, Work, verify_image};
use sidecore_remote::access::name;
use sidecore_terminal::progress::watched;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
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

impl Args {
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

//! `sidecore block verify`.

use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::pack::{BadFrame, Work, verify_image};
use sidecore_sys::text::bytes;
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `block verify`.
#[derive(clap::Args)]
#[command(after_help = "\
Every frame is inflated and checked against every checksum that the image has for it, and tables \
that reading can do without against those that it goes by. Exit status: 0 all frames and tables \
are sound, 1 some are damaged, 2 the image cannot be opened. A layer of a registry is fetched \
once more, as a whole, and compared with its digest.")]
pub(crate) struct Args {
    /// Image to verify: a file or a URL
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    access: super::image::AccessArgs,
    #[command(flatten)]
    engines: super::common::Engines,
    #[command(flatten)]
    whole: super::common::WholeArgs,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let memory = self.whole.memory();
        let access = self.access.access()?;
        let opened = memory.open(|bytes| access.open_whole(&self.image, bytes))?;
        let bar = super::common::image_progress(&opened, "verifying");
        let engines = self.engines.count();
        let (image, index) = (&opened.image, &opened.index);
        let work = Work::of(engines, self.whole.limits(&opened));
        let verified = verify_image(image, index, work, &mut |done| bar.set_position(done));
        bar.finish_and_clear();
        let verified = verified?;
        let digest = opened.remote.as_ref().map(|remote| remote.check_sha256());
        let digest = digest
            .transpose()
            .context("cannot compare the layer's digest")?
            .flatten();
        let is_whole = verified.bad_frames_total == 0;
        let outcome = match (verified.table_faults.is_empty(), digest) {
            (true, None | Some(true)) if is_whole => Outcome::Done,
            _ => Outcome::Problem,
        };
        let seconds = began.elapsed().as_secs_f64();
        if self.json {
            output::json(&Json {
                format: verified.format,
                frames: verified.frames,
                bad_frames: verified.bad_frames.iter().map(|bad| bad.frame).collect(),
                bad_frames_total: verified.bad_frames_total,
                faults: &verified.bad_frames,
                table_faults: &verified.table_faults,
                raw_bytes: verified.raw_bytes,
                checksums: verified.checksums,
                digest_matches: digest,
                engines,
                seconds,
            })?;
            return Ok(outcome);
        }
        for bad in &verified.bad_frames {
            output::line(&format!(
                "frame {} (contents from byte {}, {} bytes): {}",
                bad.frame, bad.raw_offset, bad.raw_bytes, bad.reason
            ))?;
        }
        for fault in &verified.table_faults {
            let contents = match is_whole {
                true => "the contents are whole: unpack it and pack it again",
                false => "it was read without",
            };
            output::line(&format!("{fault}; {contents}"))?;
        }
        output::line(&format!(
            "{}: {} of {} frames damaged, {} sound in {seconds:.1} s; checksums: {}",
            super::image::name(&self.image),
            verified.bad_frames_total,
            verified.frames,
            bytes(verified.raw_bytes),
            verified.checksums,
        ))?;
        match digest {
            None => {}
            Some(true) => output::line("the layer has the digest that its manifest names")?,
            Some(false) => output::line("the layer does not have the digest of its manifest")?,
        }
        Ok(outcome)
    }
}

/// `bad_frames` holds numbers, for scripts; `faults` has the reasons.
#[derive(serde::Serialize)]
struct Json<'a> {
    format: &'static str,
    frames: u64,
    bad_frames: Vec<u64>,
    bad_frames_total: u64,
    faults: &'a [BadFrame],
    table_faults: &'a [String],
    raw_bytes: u64,
    checksums: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest_matches: Option<bool>,
    engines: usize,
    seconds: f64,
}

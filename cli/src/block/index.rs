//! `sidecore block index`.

use super::image;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::format::ReadAt as _;
use sidecore_block::pack::{Indexed, Work, index_file};
use sidecore_sys::text::bytes;
use sidecore_terminal::progress::{Shape, bar};
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `block index`.
#[derive(clap::Args)]
#[command(after_help = "\
For files of many zstd frames and no table of them, as pzstd writes. Every frame is inflated once; \
where frames are is then written to FILE.sidx, which all commands that read FILE take by \
themselves. FILE stays as it is. Where it was changed since, its index is refused, or a read gets \
an I/O error. Frames of more than 64 MiB are refused: `sidecore block pack --decompress FILE -o \
IMAGE` makes an image of a file with one large frame.")]
pub(crate) struct Args {
    /// zstd file to make an index of, or the URL of one
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Index to write [default: FILE.sidx]; required for a URL, next to which the index can then be
    /// uploaded, or named with --sidx
    #[arg(short, long, value_name = "INDEX")]
    output: Option<PathBuf>,
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
        anyhow::ensure!(
            self.output.is_some() || !image::is_remote(&self.file),
            "name the index to write with --output; what is to lie beside the URL is put there \
             afterwards"
        );
        let image = image::open_bytes(&self.file)?;
        let size_bytes = image.size_bytes().context("cannot read the file")?;
        let bar = bar(Shape::Bytes, size_bytes);
        bar.set_message("indexing");
        let engines = self.engines.count();
        // A URL may hold a secret.
        let name = match image::is_remote(&self.file) {
            true => PathBuf::from(image::name(&self.file)),
            false => self.file.clone(),
        };
        let indexed = index_file(
            &image,
            &name,
            self.output.as_deref(),
            Work::of(engines, self.whole.limits_of(self.whole.memory().bytes())),
            &mut |done| {
                bar.set_position(done);
            },
        );
        bar.finish_and_clear();
        let indexed = indexed?;
        let seconds = began.elapsed().as_secs_f64();
        if self.json {
            output::json(&Json {
                indexed,
                engines,
                seconds,
            })?;
            return Ok(Outcome::Done);
        }
        output::line(&format!(
            "{}: {} in {} frames of up to {}, {} of index in {seconds:.1} s",
            indexed.index.display(),
            bytes(indexed.raw_bytes),
            indexed.frames,
            bytes(indexed.frame_bytes.into()),
            bytes(indexed.index_bytes),
        ))?;
        Ok(Outcome::Done)
    }
}

#[derive(serde::Serialize)]
struct Json {
    #[serde(flatten)]
    indexed: Indexed,
    engines: usize,
    seconds: f64,
}

//! `sidecore block index`.

use super::image;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_block::format::ReadAt as _;
use sidecore_block::pack::{Indexed, Work, index_file};
use sidecore_oci::Image;
use sidecore_oci::index::Index;
use sidecore_oci::layer::Store;
use sidecore_oci::local::Local;
use sidecore_sys::text::bytes;
use sidecore_terminal::progress::{Shape, bar};
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `block index`.
#[derive(clap::Args)]
#[command(after_help = "\
For layers of an image of containers (oci://REGISTRY/REPOSITORY:TAG, docker-archive:FILE, \
oci-archive:FILE, oci:DIR, or a folder in OCI's layout): each is fetched once, and \
kept with its index in the folder --layers; `sidecore block layer` and `sidecore snapshotter` \
mount it. \
--push puts the indexes next to the image, as an artifact that refers to it, for other machines.

For files of many zstd frames and no table of them, as pzstd writes. Every frame is inflated once; \
where frames are is then written to FILE.sidx, which all commands that read FILE take by \
themselves. FILE stays as it is. Where it was changed since, its index is refused, or a read gets \
an I/O error. Frames of more than 64 MiB are refused: `sidecore block pack --decompress FILE -o \
IMAGE` makes an image of a file with one large frame.")]
pub(crate) struct Args {
    /// zstd file to make an index of, or the URL of one; or an image of containers
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Index to write [default: FILE.sidx]; required for a URL, next to which the index can then be
    /// uploaded, or named with --sidx
    #[arg(short, long, value_name = "INDEX")]
    output: Option<PathBuf>,
    /// Folder of layers and their indexes, for an image of containers
    #[arg(long, value_name = "DIR", default_value = "/var/lib/sidecore/layers")]
    layers: PathBuf,
    /// Push the indexes of an image of containers next to it
    #[arg(long)]
    push: bool,
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
        if let Some(name) = self.file.to_str().filter(|it| Local::is_plainly(it)) {
            anyhow::ensure!(
                !self.push && self.output.is_none(),
                "{name} is in files of this machine: leave out --push and --output"
            );
            let local = Local::open(name)?;
            return self.index_layers(name, &Layers::Local(&local));
        }
        if self.output.is_none()
            && let Some(url) = self.file.to_str().filter(|it| it.starts_with("oci://"))
        {
            let image = Image::open(url)?;
            if image.is_of_containers() {
                return self.index_layers(url, &Layers::Registry(&image));
            }
        }
        anyhow::ensure!(
            !self.push,
            "--push takes an image of containers (oci://...)"
        );
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

    /// Indexes each layer of an image of containers.
    fn index_layers(&self, url: &str, image: &Layers<'_>) -> Result<Outcome> {
        let store = Store::open(&self.layers)?;
        let mut layers = Vec::new();
        let mut lazy = Vec::new();
        for (sha256, blob_bytes, _) in image.layers() {
            let index = match store.index(sha256) {
                Some((index, true)) => index,
                _ => {
                    let bar = bar(Shape::Bytes, *blob_bytes);
                    bar.set_message("indexing");
                    let fetched = image.fetch(&store, sha256, &mut |done| {
                        bar.set_position(done);
                    });
                    bar.finish_and_clear();
                    fetched?
                }
            };
            let layer = IndexedLayer {
                digest: format!("sha256:{sha256}"),
                blob_bytes: index.blob_bytes(),
                tar_bytes: index.tar_bytes(),
                spans: index.spans(),
                index_bytes: index.to_bytes().len(),
                is_lazy: index.is_lazy(),
            };
            if !self.json {
                output::line(&layer.line())?;
            }
            layers.push(layer);
            // Without places to begin, an index saves nothing.
            lazy.extend(index.is_lazy().then_some(index));
        }
        let pushed = match image {
            Layers::Registry(image) if self.push && !lazy.is_empty() => {
                Some(image.push_indexes(&lazy)?)
            }
            _ => None,
        };
        match (&pushed, self.json) {
            (_, true) => output::json(&serde_json::json!({ "layers": layers, "pushed": pushed }))?,
            (Some(digest), _) => output::line(&format!("pushed {digest} next to {url}"))?,
            (None, _) if self.push => output::note!("no layer can be read by its parts"),
            _ => {}
        }
        Ok(Outcome::Done)
    }
}

/// The image whose layers are indexed.
enum Layers<'a> {
    Registry(&'a Image),
    Local(&'a Local),
}

impl Layers<'_> {
    fn layers(&self) -> &[(String, u64, String)] {
        match self {
            Self::Registry(image) => image.layers(),
            Self::Local(local) => &local.manifest().layers,
        }
    }

    /// Reads a layer as a whole into the store.
    fn fetch(&self, store: &Store, sha256: &str, on_bytes: &mut dyn FnMut(u64)) -> Result<Index> {
        match self {
            Self::Registry(image) => Ok(image.fetch_whole(store, sha256, on_bytes)?),
            Self::Local(local) => Ok(store.fetch_whole(sha256, &mut local.blob(sha256)?.0)?),
        }
    }
}

/// A layer that has an index now.
#[derive(serde::Serialize)]
struct IndexedLayer {
    digest: String,
    blob_bytes: u64,
    tar_bytes: u64,
    spans: usize,
    index_bytes: usize,
    is_lazy: bool,
}

impl IndexedLayer {
    fn line(&self) -> String {
        format!(
            "{}: {} of {} in {} spans, {} of index{}",
            self.digest,
            bytes(self.tar_bytes),
            bytes(self.blob_bytes),
            self.spans,
            bytes(u64::try_from(self.index_bytes).unwrap_or_default()),
            if self.is_lazy {
                ""
            } else {
                "; it can only be fetched as a whole"
            },
        )
    }
}

#[derive(serde::Serialize)]
struct Json {
    #[serde(flatten)]
    indexed: Indexed,
    engines: usize,
    seconds: f64,
}

//! Indexes of all layers of an image of containers: made by one pass over each layer, kept in a
//! store, and pushed next to the image.
//!
//! Must stay true: a layer whose index here is trusted is not read again.
//! Called from: one thread; blocks on disks and the network.

use crate::convert::{ConvertError, Original};
use crate::image::ImageError;
use crate::index::Index;
use crate::layer::Store;
use serde::Serialize;
use sidecore_bare::text::bytes;
use sidecore_bare::width::ToU64;
use sidecore_terminal::progress::watched;
use std::ops::ControlFlow;

/// A layer that has an index now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IndexedLayer {
    /// Bytes of its blob.
    pub blob_bytes: u64,
    /// Its digest.
    pub digest: String,
    /// Bytes of the index.
    pub index_bytes: usize,
    /// True if it can be read by its parts.
    pub is_lazy: bool,
    /// Parts that can be read by themselves.
    pub spans: usize,
    /// Bytes of the archive in it.
    pub tar_bytes: u64,
}

/// The layers of an image, the lowest first, and the digest of what was pushed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IndexedLayers {
    /// The layers.
    pub layers: Vec<IndexedLayer>,
    /// Digest of the artifact that holds the indexes, where it was pushed.
    pub pushed: Option<String>,
}

impl IndexedLayer {
    fn of(sha256: &str, index: &Index) -> Self {
        Self {
            digest: format!("sha256:{sha256}"),
            blob_bytes: index.blob_bytes(),
            tar_bytes: index.tar_bytes(),
            spans: index.spans(),
            index_bytes: index.to_bytes().len(),
            is_lazy: index.is_lazy(),
        }
    }

    /// The same on a line for people.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{}: {} of {} in {} spans, {} of index{}",
            self.digest,
            bytes(self.tar_bytes),
            bytes(self.blob_bytes),
            self.spans,
            bytes(self.index_bytes.to_u64()),
            match self.is_lazy {
                true => "",
                false => "; it can only be fetched as a whole",
            },
        )
    }
}

/// Gives each layer of an image an index in `store`. With `push`, indexes of an image in a registry
/// are pushed next to it. Where `on_layer` breaks at a layer, nothing more is read, and nothing
/// pushed. Standard error shows the progress where it is a terminal.
///
/// # Errors
/// [`ConvertError`]; layers that were read before have their index.
pub fn index_layers(
    image: &Original,
    store: &Store,
    push: bool,
    on_layer: &mut dyn FnMut(&IndexedLayer) -> ControlFlow<()>,
) -> Result<IndexedLayers, ConvertError> {
    let mut layers = Vec::new();
    let mut lazy = Vec::new();
    for (sha256, blob_bytes, _) in image.layers() {
        let index = match store.index(sha256) {
            Some((index, true)) => index,
            // One from elsewhere is proved by the pass that makes it again.
            _ => watched(Some(*blob_bytes), "indexing", |on_bytes| {
                image.fetch_whole(store, sha256, on_bytes)
            })?,
        };
        let layer = IndexedLayer::of(sha256, &index);
        let goes_on = on_layer(&layer).is_continue();
        layers.push(layer);
        if !goes_on {
            return Ok(IndexedLayers {
                layers,
                pushed: None,
            });
        }
        // Without places to begin, an index saves nothing.
        lazy.extend(index.is_lazy().then_some(index));
    }
    let pushed = match image {
        Original::Registry(image) if push && !lazy.is_empty() => Some(image.push_indexes(&lazy)?),
        _ => None,
    };
    Ok(IndexedLayers { layers, pushed })
}

impl Original {
    /// Reads a layer as a whole into the store.
    fn fetch_whole(
        &self,
        store: &Store,
        sha256: &str,
        on_bytes: &mut dyn FnMut(u64),
    ) -> Result<Index, ConvertError> {
        match self {
            Self::Registry(image) => Ok(image.fetch_whole(store, sha256, on_bytes)?),
            Self::Local(local) => {
                let fetched = store.fetch_whole(sha256, &mut local.blob(sha256)?.0);
                Ok(fetched.map_err(ImageError::from)?)
            }
        }
    }
}

//! Layers of unmodified OCI images as file systems that are read by ranges, and a containerd
//! snapshotter that mounts them.
//!
//! Top-down:
//!
//! - [`snapshotter`]: containerd's remote snapshotter: its service, its records, its mounts.
//! - [`Image`]: the layers of an image in a registry; indexes that are found, made and pushed.
//! - [`layer`]: a layer as a device ([`layer::LayerDevice`]); `store`: its folder.
//! - [`local`]: an image in files: a layout, or an archive.
//! - [`convert`]: layers that become images of this project.
//! - [`indexing`]: indexes of all layers of an image.
//! - [`build`]: one pass over a layer: its index and its contents.
//! - [`index`]: the index of a layer.
//! - `tree`: the file system of a layer.
//! - `tar`, `gzip`: what layers are made of.
//!
//! Must stay true: layers, indexes and registries are inputs that an attacker may write; see
//! [`index`] and `tree` for their bounds.

pub mod build;
pub mod convert;
mod gzip;
mod image;
pub mod index;
pub mod indexing;
pub mod layer;
pub mod local;
pub mod snapshotter;
mod store;
mod tar;
#[cfg(test)]
mod tests;
mod tree;

pub use image::{Image, ImageError, LayerMount};

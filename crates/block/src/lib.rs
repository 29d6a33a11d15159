//! Compressed images, inflated by engines, behind interfaces that programs already use.
//!
//! Top-down, the way a read travels:
//!
//! - [`export`]: how a read comes in (FUSE file, loop device, ublk, NBD). Thin; all I/O towards
//!   clients is there.
//! - [`source`]: the one trait that exports see.
//! - [`image`]: the compressed bytes, of a file here or of something far away.
//! - [`device`]: maps a read to frames, keeps a bounded cache of inflated frames, reads ahead,
//!   chooses the grain.
//! - [`overlay`]: writes to an image that stays as it is, in a file beside it.
//! - [`mod@format`]: where each frame lies in an image and how it is compressed; readers and
//!   writers of every format.
//! - [`codec`]: inflating and deflating one frame, on an engine.
//! - [`pack`]: making an image, all engines deflating.
//! - [`inner`]: making a file system out of a directory before it is packed.
//! - [`trust`]: who vouches for an image.
//! - [`secret`]: who may read one that is encrypted.
//! - [`served`]: one frame inflated for another process, by the daemon.
//!
//! Source: the user-mode SPE driver of 2007 (a compressed loop device whose 64 KiB blocks were
//! inflated by SPEs).

pub mod codec;
pub mod device;
pub mod export;
pub mod format;
pub mod image;
pub mod inner;
pub mod overlay;
pub mod pack;
pub mod secret;
pub mod served;
pub mod source;
pub mod trust;

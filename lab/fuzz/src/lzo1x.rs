//! LZO1X streams, decompressed by the fast decompressor and by the plain one.
//!
//! Source: docs/formats/lzo1x.md.

#[path = "../../../image/format/src/codec/lzo1x/tests/differ.rs"]
mod differ;
#[path = "../../../image/format/src/codec/lzo1x/tests/streams.rs"]
mod streams;

use sidecore_block::codec::lzo1x::{Inflate, bound, inflate_plainly};
use sidecore_block::codec::{Deflater, Inflater};

pub use differ::{Differ, fuzz_inflate};
pub use streams::{Random, mutate, random_stream, round_trip};

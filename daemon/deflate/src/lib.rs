#![doc = include_str!("../README.md")]
//!
//! Top-down: [`Deflater`] makes one block of a stream (`block`); `seam` finds the two places in a
//! block that must change so that another can follow; [`served`] has the kernels `deflate` and
//! `inflate` that `sidecore daemon` serves.
//!
//! Must stay true: a block's bytes depend only on its input, its level and on being the last one,
//! never on the engine or thread that made it. No `unsafe`, no I/O, no threads outside [`served`].
//! Source: RFC 1951.

mod block;
mod seam;
pub mod served;

pub use block::{BLOCK_BYTES, Deflater, LEVEL_MAX, block_bytes_max};
pub use check::CheckKind;

mod check {
    //! Checksums of raw bytes as zlib (RFC 1950) and gzip (RFC 1952) streams end with. Pure.

    /// The checksum that a stream's trailer has.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum CheckKind {
        /// None: a raw stream.
        #[default]
        None,
        /// Adler-32: zlib.
        Adler32,
        /// CRC-32: gzip.
        Crc32,
    }

    impl CheckKind {
        /// All kinds, in the order of their numbers in requests.
        pub const ALL: [Self; 3] = [Self::None, Self::Adler32, Self::Crc32];

        /// The checksum of these bytes alone; 0 for [`Self::None`].
        #[must_use]
        pub fn of(self, raw: &[u8]) -> u32 {
            match self {
                Self::None => 0,
                Self::Adler32 => libdeflater::adler32(raw),
                Self::Crc32 => libdeflater::crc32(raw),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Streams of blocks against another inflater; seams against streams of another deflater.

    use crate::block::{BLOCK_BYTES, Deflater, block_bytes_max};
    use crate::check::CheckKind;
    use crate::seam::{Seam, Seams};
    use proptest::prelude::*;
    use sidecore_random::choices::Choices;

    /// The whole stream of `raw` in blocks of at most `block_bytes`.
    fn deflate(raw: &[u8], level: u8, block_bytes: usize) -> Vec<u8> {
        let mut deflater = Deflater::default();
        let mut stream = Vec::new();
        let mut blocks: Vec<&[u8]> = raw.chunks(block_bytes).collect();
        if blocks.is_empty() {
            blocks.push(&[]);
        }
        let last = blocks.len() - 1;
        for (index, block) in blocks.into_iter().enumerate() {
            let mut out = vec![0xa5; block_bytes_max(block.len())];
            let bytes = deflater.block(block, level, index == last, &mut out);
            stream.extend(&out[..bytes.unwrap()]);
        }
        stream
    }

    /// Another implementation's output for a raw stream; every byte of the input must belong to the
    /// stream.
    fn inflate(stream: &[u8], raw_bytes: usize) -> Vec<u8> {
        let mut out = vec![0; raw_bytes + 1];
        let config = zlib_rs::InflateConfig { window_bits: -15 };
        let (inflated, code) = zlib_rs::decompress_slice(&mut out, stream, config);
        assert_eq!(code, zlib_rs::ReturnCode::Ok);
        inflated.to_vec()
    }

    /// A raw stream by another deflater.
    fn theirs(raw: &[u8], level: i32, strategy: zlib_rs::Strategy) -> Vec<u8> {
        let config = zlib_rs::DeflateConfig {
            level,
            window_bits: -15,
            strategy,
            ..Default::default()
        };
        let mut out = vec![0; zlib_rs::compress_bound(raw.len()) + 100];
        let (stream, code) = zlib_rs::compress_slice(&mut out, raw, config);
        assert_eq!(code, zlib_rs::ReturnCode::Ok);
        stream.to_vec()
    }

    /// Text of a few letters with repetitions, letters each half as frequent as the one before
    /// (whose codes are long), noise, or zeros, from a seed.
    fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut choices = Choices::seeded(seed);
        let letters = [1, 4, 30, 256, 0][choices.below(5) as usize];
        let mut raw: Vec<u8> = Vec::with_capacity(len + 300);
        while raw.len() < len {
            if raw.len() > 10 && choices.below(3) == 0 {
                let back = 1 + choices.below(raw.len().min(40_000) as u64) as usize;
                for _ in 0..3 + choices.below(260) {
                    raw.push(raw[raw.len() - back]);
                }
            } else if letters == 0 {
                raw.push(choices.bits().leading_zeros() as u8);
            } else {
                raw.push(choices.below(letters) as u8);
            }
        }
        raw.truncate(len);
        raw
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn blocks_are_one_stream_that_others_inflate(
            seed: u64,
            len in prop_oneof![0usize..40, 0usize..400_000],
            level in 0u8..=9,
            block in prop_oneof![1usize..40, 5_000usize..BLOCK_BYTES, Just(BLOCK_BYTES)],
        ) {
            let raw = bytes(seed, len.min(block * 200));
            let stream = deflate(&raw, level, block);
            prop_assert!(inflate(&stream, raw.len()) == raw);
            let blocks = raw.len().div_ceil(block).max(1);
            let bound: usize = raw.chunks(block).map(|block| block_bytes_max(block.len())).sum();
            prop_assert!(stream.len() <= bound.max(16), "{} for {} blocks", stream.len(), blocks);
        }

        #[test]
        fn seams_of_any_deflaters_streams_are_found(
            seed: u64,
            len in 0usize..300_000,
            level in 1i32..=9,
        ) {
            let raw = bytes(seed, len);
            for strategy in [zlib_rs::Strategy::Default, zlib_rs::Strategy::Fixed] {
                let stream = theirs(&raw, level, strategy);
                let seam = Seams::default().find(&stream).unwrap();
                prop_assert_eq!(seam.end.div_ceil(8), stream.len());
                // Unmarked, the stream goes on behind its end.
                let mut unmarked = stream.clone();
                unmarked[seam.final_mark / 8] &= !(1 << (seam.final_mark % 8));
                unmarked.extend([0; 8]);
                prop_assert!(Seams::default().find(&unmarked[..stream.len()]).is_none());
            }
        }

        #[test]
        fn a_seam_of_anything_is_none_or_within(
            junk in prop::collection::vec(any::<u8>(), 0..200),
            seed: u64,
            cut in any::<prop::sample::Index>(),
        ) {
            if let Some(Seam { final_mark, end }) = Seams::default().find(&junk) {
                prop_assert!(final_mark < end && end <= junk.len() * 8);
            }
            let stream = theirs(&bytes(seed, 5_000), 6, zlib_rs::Strategy::Default);
            prop_assert!(Seams::default().find(&stream[..cut.index(stream.len())]).is_none());
        }
    }

    #[test]
    fn a_damaged_stream_is_read_without_a_panic() {
        let stream = theirs(&bytes(1, 3_000), 6, zlib_rs::Strategy::Default);
        let mut seams = Seams::default();
        for bit in 0..stream.len() * 8 {
            let mut damaged = stream.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Some(seam) = seams.find(&damaged) {
                assert!(seam.end <= damaged.len() * 8);
            }
        }
    }

    #[test]
    fn what_does_not_compress_is_stored_and_no_longer_than_that() {
        let noise: Vec<u8> = {
            let mut choices = Choices::seeded(7);
            (0..300_000).map(|_| choices.below(256) as u8).collect()
        };
        for level in [0, 1, 6, 9] {
            let stream = deflate(&noise, level, BLOCK_BYTES);
            assert!(
                stream.len() <= noise.len() + 5 * (300_000 / 0xffff + 3),
                "{}",
                stream.len()
            );
        }
        assert_eq!(
            Deflater::default().block(&noise, 6, true, &mut [0; 1000]),
            None
        );
    }

    #[test]
    fn checksums_are_the_known_ones() {
        assert_eq!(CheckKind::Adler32.of(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(CheckKind::Crc32.of(b"123456789"), 0xcbf4_3926);
        assert_eq!(CheckKind::None.of(b"123456789"), 0);
    }
}

//! Small whole images of every format and variant, with their contents. The old cloop headers,
//! which no program writes any more, are built here by hand.
//!
//! Why here: the conformance suite reads them. `lab/fuzz` includes this file for its seeds; names
//! of the crate are imported from the parent module, which differs.

use super::{
    Cipher, CodecId, Format, ImageKey, Layout, Locker, Packed, Slot, Walked, is_zero, make_deflater,
};
use sidecore_random::SplitMix;
use std::sync::Arc;

/// An image, and its contents.
#[derive(Debug, Clone)]
pub struct Seed {
    /// Name in failures.
    pub name: &'static str,
    /// The format that it opens as.
    pub format: Format,
    /// The image.
    pub image: Vec<u8>,
    /// Its contents.
    pub raw: Vec<u8>,
    /// Bytes of contents per frame.
    pub frame_bytes: usize,
    /// True when its codec checks contents.
    pub codec_checks: bool,
}

/// One seed of every format and variant.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let raw = contents(10_000);
    let padded = contents(3 * 4096);
    let mut seeds = Vec::new();
    for format in Format::ALL {
        let raw = if matches!(format, Format::Cloop | Format::CloopLzo) {
            &padded
        } else {
            &raw
        };
        seeds.push(Seed {
            name: format.name(),
            format,
            image: image(format, raw, true, &[4096], None, false),
            raw: raw.clone(),
            frame_bytes: 4096,
            codec_checks: matches!(format, Format::Zstd | Format::Lz4 | Format::Cloop),
        });
    }
    seeds.push(Seed {
        name: "cloop-lzo, head last",
        image: image(Format::CloopLzo, &padded, false, &[4096], None, false),
        ..seeds[2].clone()
    });
    for (name, of) in [("zstd, uneven", 0), ("lz4, uneven", 1)] {
        let seed: Seed = seeds[of].clone();
        seeds.push(Seed {
            name,
            image: image(seed.format, &raw, true, &[1000, 4096, 700], None, false),
            ..seed
        });
    }
    for (name, checked) in [
        ("foreign zstd, checked", true),
        ("foreign zstd, unchecked", false),
    ] {
        seeds.push(Seed {
            name,
            image: foreign_zstd(&raw, checked),
            ..seeds[0].clone()
        });
    }
    for (name, number, cipher) in [
        ("encrypted zstd", 0, Cipher::Aes256Gcm),
        ("encrypted lz4", 1, Cipher::ChaCha20Poly1305),
    ] {
        let plain: &Seed = &seeds[number];
        seeds.push(Seed {
            name,
            image: image(plain.format, &raw, true, &[4096], Some(cipher), false),
            ..plain.clone()
        });
    }
    for (name, number, cipher) in [
        ("thin zstd", 0, None),
        ("thin lz4", 1, None),
        ("encrypted thin zstd", 0, Some(Cipher::Aes256Gcm)),
    ] {
        let plain: &Seed = &seeds[number];
        seeds.push(Seed {
            name,
            image: image(plain.format, &raw, true, &[4096], cipher, true),
            ..plain.clone()
        });
    }
    for (name, head) in OLD_HEADS {
        seeds.push(Seed {
            name,
            format: Format::Cloop,
            image: old_cloop(head, &padded),
            raw: padded.clone(),
            frame_bytes: 4096,
            codec_checks: !matches!(
                head,
                Old::V4(CodecId::Lz4Block | CodecId::Store) | Old::Cloop3
            ),
        });
    }
    seeds
}

/// An image written by us, of frames whose sizes cycle through `sizes`. With a cipher it is
/// encrypted with [`secret`]; a thin one has holes for frames of zeros.
fn image(
    format: Format,
    raw: &[u8],
    seekable: bool,
    sizes: &[usize],
    cipher: Option<Cipher>,
    thin: bool,
) -> Vec<u8> {
    let layout = Layout {
        frame_bytes: 4096,
        raw_bytes: Some(raw.len() as u64),
        seekable,
        uneven: sizes.len() > 1,
        thin,
    };
    let mut writer = format
        .writer(&layout)
        .unwrap_or_else(|error| panic!("{error}"));
    let lock = cipher.and_then(|cipher| Locker::of(cipher, &secret(), &[Slot::Unknown(9)]));
    let key = lock.as_ref().map(|lock| Arc::clone(lock.key()));
    if let Some(lock) = lock {
        writer.lock(lock);
    }
    let mut image = writer.start();
    let mut rest = raw;
    for (number, &size) in sizes.iter().cycle().enumerate() {
        if rest.is_empty() {
            break;
        }
        let (frame, more) = rest.split_at(size.min(rest.len()));
        rest = more;
        if thin && is_zero(frame) {
            writer
                .push_holes(1, frame.len() as u64)
                .unwrap_or_else(|error| panic!("{error}"));
            continue;
        }
        let mut frame = frame.to_vec();
        if writer.pads_last_frame() {
            frame.resize(4096, 0);
        }
        let mut stored = deflate(writer.codec(), &frame);
        if let Some(key) = &key {
            let encrypted = key.encrypt(number as u64, frame.len() as u32, &mut stored);
            encrypted.unwrap_or_else(|error| panic!("{error:?}"));
        }
        image.extend_from_slice(&stored);
        writer
            .push(&Packed::of(&stored, &frame))
            .unwrap_or_else(|error| panic!("{error}"));
    }
    let ending = (writer.finish(&mut image)).unwrap_or_else(|error| panic!("{error}"));
    if let Some(front) = ending.front {
        image[..front.len()].copy_from_slice(&front);
    }
    image
}

/// The key of encrypted seeds.
pub(crate) fn secret() -> ImageKey {
    ImageKey::new([7; 32])
}

/// A seekable zstd file as other programs make them: frames of uneven size, an empty one, with or
/// without checksums.
fn foreign_zstd(raw: &[u8], checked: bool) -> Vec<u8> {
    let mut image = Vec::new();
    let mut table = Vec::new();
    let (first, rest) = raw.split_at(raw.len().min(1000));
    let (second, third) = rest.split_at(rest.len() / 3);
    for part in [first, second, &[], third] {
        let stored = deflate(CodecId::Zstd, part);
        table.extend((stored.len() as u32).to_le_bytes());
        table.extend((part.len() as u32).to_le_bytes());
        if checked {
            table.extend((xxhash_rust::xxh64::xxh64(part, 0) as u32).to_le_bytes());
        }
        image.extend(stored);
    }
    image.extend(0x184D_2A5E_u32.to_le_bytes());
    image.extend((table.len() as u32 + 9).to_le_bytes());
    image.extend(table);
    image.extend(4_u32.to_le_bytes());
    image.push(if checked { 0x80 } else { 0 });
    image.extend(0x8F92_EAB1_u32.to_le_bytes());
    image
}

/// A zstd file as made by pzstd, followed by its sidecar index.
#[must_use]
pub fn sidecar_seed() -> Vec<u8> {
    let raw = contents(9000);
    let (mut file, mut walked) = (Vec::new(), Walked::default());
    for part in raw.chunks(3500) {
        let stored = deflate(CodecId::Zstd, part);
        let mut frame = 0x184D_2A50_u32.to_le_bytes().to_vec();
        frame.extend(4_u32.to_le_bytes());
        frame.extend((stored.len() as u32).to_le_bytes());
        frame.extend(stored);
        walked.push(
            &frame,
            xxhash_rust::xxh3::xxh3_64(&frame),
            part.len() as u32,
        );
        file.extend(frame);
    }
    let mut index = Vec::new();
    let written = walked.write(file.len() as u64, &mut index);
    written.unwrap_or_else(|error| panic!("{error}"));
    file.extend(index);
    file
}

/// A variant of cloop that we read but do not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Old {
    /// 32-bit offsets, no signature.
    V068,
    /// Little-endian offsets.
    V1,
    /// V2.0 with the header last.
    V2Last,
    /// Accelerated Knoppix: offset, size, order.
    Scattered,
    /// V3.0 with sizes last.
    SizesLast,
    /// The CLOOP3 tail, codecs mixed.
    Cloop3,
    /// V4.0, header first, of one codec.
    V4(CodecId),
}

/// All of them.
const OLD_HEADS: [(&str, Old); 10] = [
    ("cloop 0.68", Old::V068),
    ("cloop V1.0", Old::V1),
    ("cloop V2.0, head last", Old::V2Last),
    ("cloop, accelerated Knoppix", Old::Scattered),
    ("cloop V3.0, sizes last", Old::SizesLast),
    ("cloop V3, CLOOP3 tail", Old::Cloop3),
    ("cloop V4.0 zlib", Old::V4(CodecId::Zlib)),
    ("cloop V4.0 xz", Old::V4(CodecId::Xz)),
    ("cloop V4.0 lz4", Old::V4(CodecId::Lz4Block)),
    ("cloop V4.0 stored", Old::V4(CodecId::Store)),
];

/// Builds an image with an old header; `raw` is cut into blocks of 4 KiB.
fn old_cloop(old: Old, raw: &[u8]) -> Vec<u8> {
    let mixed = [
        CodecId::Zlib,
        CodecId::Lzo1x,
        CodecId::Store,
        CodecId::Xz,
        CodecId::Lz4Block,
    ];
    let codec = |i: usize| match old {
        Old::V4(codec) => codec,
        Old::Cloop3 => mixed[i % mixed.len()],
        _ => CodecId::Zlib,
    };
    let blocks: Vec<Vec<u8>> = raw
        .chunks(4096)
        .enumerate()
        .map(|(i, block)| deflate(codec(i), block))
        .collect();
    let n = blocks.len();
    let signature: &[u8] = match old {
        Old::V068 => b"#!/bin/sh\ninsmod cloop.o file=$0\n",
        Old::V1 => b"#!/bin/sh\n#V1.0 Format\n",
        Old::V2Last => b"#!/bin/sh\n#V2.0 Format\n",
        Old::Scattered => b"#!/bin/sh\n#V2.00 Format\n",
        Old::SizesLast => b"#!/bin/sh\n#V3.0 Format\n",
        Old::V4(_) => b"#!/bin/sh\n#V4.0 Format\n",
        Old::Cloop3 => b"",
    };
    let mut head = signature.to_vec();
    head.resize(128, 0);
    head.extend(4096_u32.to_be_bytes());
    let open = old == Old::SizesLast;
    head.extend(if open { u32::MAX } else { n as u32 }.to_be_bytes());
    let offsets = |first: usize| {
        let mut at = first;
        let ends = blocks.iter().map(move |block| {
            at += block.len();
            at as u64
        });
        std::iter::once(first as u64)
            .chain(ends)
            .collect::<Vec<u64>>()
    };
    let mut image = match old {
        Old::V2Last | Old::Cloop3 => vec![0; 512],
        _ => head.clone(),
    };
    match old {
        Old::V068 => {
            let table = offsets(136 + 4 * (n + 1));
            image.extend(
                table
                    .iter()
                    .flat_map(|offset| (*offset as u32).to_be_bytes()),
            );
        }
        Old::V1 => {
            image.extend(
                offsets(136 + 8 * (n + 1))
                    .iter()
                    .flat_map(|offset| offset.to_le_bytes()),
            );
        }
        Old::V4(codec) => {
            let flag = match codec {
                CodecId::Store => 1,
                CodecId::Xz => 2,
                CodecId::Lz4Block => 3,
                CodecId::Lzo1x => 4,
                _ => 0_u64,
            };
            let table = offsets(136 + 8 * (n + 1));
            image.extend(
                table
                    .iter()
                    .flat_map(|offset| (offset | flag << 60).to_be_bytes()),
            );
        }
        Old::Scattered => {
            // The blocks are stored in reverse order.
            let mut at = 136 + 16 * n + blocks.iter().map(Vec::len).sum::<usize>();
            for (i, block) in blocks.iter().enumerate() {
                at -= block.len();
                image.extend((at as u64).to_be_bytes());
                image.extend((block.len() as u32).to_be_bytes());
                image.extend((i as u32).to_be_bytes());
            }
            image.extend(blocks.iter().rev().flatten());
            return image;
        }
        Old::V2Last | Old::SizesLast | Old::Cloop3 => {}
    }
    let first = image.len();
    image.extend(blocks.iter().flatten());
    match old {
        Old::V2Last => {
            image.extend(
                offsets(first)
                    .iter()
                    .flat_map(|offset| offset.to_be_bytes()),
            );
            image.extend(head);
        }
        Old::SizesLast => {
            image.extend(
                blocks
                    .iter()
                    .flat_map(|block| (block.len() as u32).to_be_bytes()),
            );
            image.extend(4_u32.to_be_bytes());
            image.extend((n as u32).to_be_bytes());
        }
        Old::Cloop3 => {
            let table = image.len().next_multiple_of(4096);
            image.resize(table, 0);
            image.extend((n as u32).to_be_bytes());
            image.extend(4096_u32.to_be_bytes());
            image.extend((raw.len() as u64).to_be_bytes());
            image.extend(
                offsets(first)
                    .iter()
                    .flat_map(|offset| offset.to_be_bytes()),
            );
            for i in 0..n {
                let flag: u32 = match codec(i) {
                    CodecId::Zlib => 2,
                    CodecId::Lzo1x => 4,
                    CodecId::Xz => 8,
                    CodecId::Lz4Block => 16,
                    _ => 0,
                };
                image.extend(flag.to_be_bytes());
            }
            image.extend((table as u64).to_be_bytes());
            image.extend(3_u32.to_be_bytes());
            image.extend(b"\nCLOOP3\n");
        }
        _ => {}
    }
    image
}

fn deflate(codec: CodecId, raw: &[u8]) -> Vec<u8> {
    // Small dictionaries: the runner opens millions of these.
    let level = (codec == CodecId::Xz).then_some(0);
    let mut stored = Vec::new();
    make_deflater(codec, level)
        .and_then(|mut deflater| deflater.deflate(raw, &mut stored))
        .unwrap_or_else(|error| panic!("{error}"));
    stored
}

/// Contents that are easy to tell apart: text with the offset in it, some noise, some zeros.
fn contents(bytes: usize) -> Vec<u8> {
    let mut noise = SplitMix::new(99);
    let mut raw = Vec::new();
    while raw.len() < bytes {
        match raw.len() / 512 % 4 {
            0 | 1 => raw.extend(format!("the byte at {} of this image. ", raw.len()).bytes()),
            2 => raw.extend((0..100).map(|_| noise.bits() as u8)),
            _ => raw.extend([0; 200]),
        }
    }
    raw.truncate(bytes);
    let zero_from = 4096.min(bytes);
    let zero_to = 8192.min(bytes);
    raw[zero_from..zero_to].fill(0);
    raw
}

//! One conformance suite over all formats, every variant included; then tests of single formats.

#[allow(
    dead_code,
    unreachable_pub,
    reason = "lab/fuzz, which includes the same file, uses the rest"
)]
mod fixtures;
mod limits;
mod sidecar;
mod thin;
mod tree;

use super::lock::{Cipher, ImageKey, Locker, Slot};
use super::sidecar::Walked;
use super::write::{Packed, is_zero};
use super::*;
use crate::codec::{CodecId, make_deflater};
use fixtures::{Seed, secret, seeds};

fn read_all(image: &[u8]) -> Vec<u8> {
    let mut index = Index::read(&image).unwrap();
    assert_eq!(index.unlock(&secret()), index.lock().is_some());
    let mut reader = FrameReader::of(&index, true);
    let mut raw = Vec::new();
    for i in 0..index.frames() {
        let frame = index.frame(i);
        assert_eq!(frame.raw_offset, raw.len() as u64);
        raw.extend_from_slice(reader.read(&image, &frame).unwrap());
    }
    raw
}

fn seed(name: &str) -> Seed {
    seeds().into_iter().find(|seed| seed.name == name).unwrap()
}

fn error(image: &[u8]) -> String {
    match Index::read(&image) {
        Ok(index) => panic!("opened as {}", index.variant()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_variant_reads_back() {
    for seed in seeds() {
        let index = Index::read(&seed.image.as_slice()).unwrap();
        assert_eq!(index.format(), seed.format, "{}", seed.name);
        assert_eq!(index.raw_bytes(), seed.raw.len() as u64, "{}", seed.name);
        assert_eq!(
            index.stored_bytes(),
            seed.image.len() as u64,
            "{}",
            seed.name
        );
        assert!(read_all(&seed.image) == seed.raw, "{}", seed.name);
    }
}

#[test]
fn every_byte_is_found_in_its_frame() {
    for seed in seeds() {
        let index = Index::read(&seed.image.as_slice()).unwrap();
        for at in 0..index.raw_bytes() {
            let frame = index.frame(index.frame_at(at));
            let end = frame.raw_offset + u64::from(frame.raw_bytes);
            assert!(
                (frame.raw_offset..end).contains(&at),
                "{}: byte {at}",
                seed.name
            );
            assert!(frame.stored_bytes <= index.stored_bytes_max());
            assert!(frame.raw_bytes <= index.frame_bytes());
        }
    }
}

#[test]
fn zeros_are_known_where_the_format_has_room() {
    for seed in seeds() {
        let index = Index::read(&seed.image.as_slice()).unwrap();
        let zero_frames = match seed.name {
            "zstd" | "lz4" | "encrypted zstd" | "encrypted lz4" => 1,
            "thin zstd" | "thin lz4" | "encrypted thin zstd" => 1,
            // With frames of 700 and 1,000 bytes more than one lies in the zeros, but not frame 1.
            "zstd, uneven" | "lz4, uneven" => 2,
            _ => 0,
        };
        assert_eq!(index.zero_frames(), zero_frames, "{}", seed.name);
        assert_eq!(index.is_zero(1), zero_frames == 1, "{}", seed.name);
        assert!(!index.is_zero(0));
    }
}

#[test]
fn a_cut_image_says_so() {
    for (name, says) in [
        ("zstd", "cut short"),
        ("lz4", "cut short"),
        ("cloop", "cut short"),
    ] {
        let image = seed(name).image;
        let message = error(&image[..image.len() - 3]);
        assert!(message.contains(says), "{name}: {message}");
    }
}

#[test]
fn a_flipped_byte_in_a_checked_frame_is_a_bad_frame() {
    for name in ["zstd", "lz4", "foreign zstd, checked"] {
        let seed = seed(name);
        let index = Index::read(&seed.image.as_slice()).unwrap();
        for i in 0..index.frames() {
            let frame = index.frame(i);
            let mut image = seed.image.clone();
            image[frame.offset as usize + frame.stored_bytes as usize / 2] ^= 0x10;
            let mut reader = FrameReader::new(false);
            for j in 0..index.frames() {
                let result = reader.read(&image.as_slice(), &index.frame(j));
                assert_eq!(
                    result.is_err(),
                    i == j,
                    "{name}: frame {j} with {i} damaged"
                );
            }
        }
    }
}

#[test]
fn absurd_counts_are_refused_before_anything_is_allocated() {
    for (name, at, width) in [
        ("cloop", 132, 4),
        ("cloop V1.0", 132, 4),
        ("cloop-lzo", 132, 4),
    ] {
        let mut image = seed(name).image;
        image[at..at + width].fill(0xFE);
        let message = error(&image);
        assert!(message.contains("have room for"), "{name}: {message}");
    }
    let mut image = seed("foreign zstd, checked").image;
    let footer = image.len() - 9;
    image[footer..footer + 4].copy_from_slice(&0x0700_0000_u32.to_le_bytes());
    let message = error(&image);
    assert!(message.contains("117440512 frames"), "{message}");
}

#[test]
fn a_frame_that_would_inflate_to_too_much_is_refused() {
    let mut image = seed("cloop").image;
    image[128..132].copy_from_slice(&(32_u32 << 20).to_be_bytes());
    assert!(error(&image).contains("up to 16 MiB"), "{}", error(&image));
    let mut image = seed("foreign zstd, checked").image;
    let first = image.len() - 9 - 4 * 12;
    image[first + 4..first + 8].copy_from_slice(&((64_u32 << 20) + 1).to_le_bytes());
    let message = error(&image);
    assert!(
        message.contains("inflates to 67108865 bytes, the limit is 67108864"),
        "{message}"
    );
}

#[test]
fn tables_that_descend_or_overlap_are_refused() {
    let table = 136;
    let mut image = seed("cloop").image;
    let (first, second) = (
        image[table..table + 8].to_vec(),
        image[table + 8..table + 16].to_vec(),
    );
    image[table + 8..table + 16].copy_from_slice(&first);
    image[table..table + 8].copy_from_slice(&second);
    let message = error(&image);
    assert!(message.contains("frame 0 of 3"), "{message}");

    let mut image = seed("cloop, accelerated Knoppix").image;
    let offset = image[table + 7];
    image[table + 16 + 7] = offset - 1;
    image[table + 16 + 6] = image[table + 6];
    let message = error(&image);
    assert!(message.contains("overlaps another block"), "{message}");

    let mut image = seed("cloop").image;
    image[table..table + 8].copy_from_slice(&100_u64.to_be_bytes());
    let message = error(&image);
    assert!(message.contains("begins inside the table"), "{message}");
}

#[test]
fn an_unknown_codec_is_named() {
    let mut image = seed("cloop V4.0 zlib").image;
    image[136] |= 0x90;
    assert!(
        error(&image).contains("names compressor 9"),
        "{}",
        error(&image)
    );
}

#[test]
fn nothing_at_all_is_no_image() {
    assert!(error(b"").contains("holds no bytes"), "{}", error(b""));
    let mut image = seed("cloop").image;
    image[132..136].fill(0);
    assert!(
        error(&image).contains("holds no bytes"),
        "{}",
        error(&image)
    );
}

#[test]
fn a_plain_zst_or_lz4_file_is_refused_with_advice() {
    let raw = b"some bytes".repeat(100);
    for (codec, program) in [
        (CodecId::Zstd, "sidecore block index FILE"),
        (CodecId::Lz4Frame, "lz4 -d"),
    ] {
        let mut stored = Vec::new();
        crate::codec::make_deflater(codec, None)
            .unwrap()
            .deflate(&raw, &mut stored)
            .unwrap();
        let message = error(&stored);
        assert!(message.contains(program), "{message}");
    }
}

#[test]
fn a_damaged_index_of_ours_falls_back_to_the_standard_table() {
    let seed = seed("zstd");
    let mut image = seed.image.clone();
    let at = image
        .windows(8)
        .position(|window| window == *b"sidecore")
        .unwrap();
    image[at + 30] ^= 1;
    let index = Index::read(&image.as_slice()).unwrap();
    assert!(matches!(index.frame(0).check, FrameCheck::Raw(_)));
    assert!(read_all(&image) == seed.raw);
}

#[test]
fn the_seek_table_is_the_standard_one() {
    let seed = seed("zstd");
    let image = &seed.image;
    let footer = &image[image.len() - 9..];
    assert_eq!(footer[5..], 0x8F92_EAB1_u32.to_le_bytes());
    assert_eq!(footer[4], 0x80, "checksums are on");
    let entries = u32::from_le_bytes([footer[0], footer[1], footer[2], footer[3]]) as usize;
    let table = image.len() - 9 - entries * 12;
    assert_eq!(image[table - 8..table - 4], 0x184D_2A5E_u32.to_le_bytes());
    // Every frame of the file has an entry, ours too, so that sizes add up to the start of the
    // table.
    let (mut at, mut raw_at) = (0, 0);
    for entry in image[table..].chunks(12).take(entries) {
        let field =
            |i: usize| u32::from_le_bytes([entry[i], entry[i + 1], entry[i + 2], entry[i + 3]]);
        let raw = &seed.raw[raw_at..raw_at + field(4) as usize];
        assert_eq!(field(8), xxhash_rust::xxh64::xxh64(raw, 0) as u32);
        at += field(0) as usize;
        raw_at += raw.len();
    }
    assert_eq!((at, raw_at), (table - 8, seed.raw.len()));
}

#[test]
fn frames_of_all_sizes_keep_their_places() {
    // Uneven from every position on, and a last frame shorter, equal or longer than the others.
    for odd in 0..6 {
        for size in [500_u32, 1000, 1500] {
            let mut builder = Builder::new(Format::Zstd, "test", 1 << 20, 6);
            let mut sizes = [1000; 6];
            sizes[odd] = size;
            for (i, raw_bytes) in sizes.into_iter().enumerate() {
                let frame = Frame {
                    offset: i as u64 * 300,
                    stored_bytes: if i == odd { 200 } else { 300 },
                    raw_bytes,
                    raw_offset: 0,
                    number: 0,
                    codec: CodecId::Zstd,
                    check: FrameCheck::Raw(i as u32),
                };
                builder.push(frame, i % 2 == 1).unwrap();
            }
            let index = builder.finish().unwrap();
            let mut raw_offset = 0;
            for (i, raw_bytes) in sizes.into_iter().enumerate() {
                let frame = index.frame(i as u64);
                assert_eq!(frame.raw_bytes, raw_bytes, "odd {odd} size {size}");
                assert_eq!(frame.raw_offset, raw_offset);
                assert_eq!(frame.offset, i as u64 * 300);
                assert_eq!(frame.stored_bytes, if i == odd { 200 } else { 300 });
                assert_eq!(frame.check, FrameCheck::Raw(i as u32));
                assert_eq!(index.is_zero(i as u64), i % 2 == 1);
                assert_eq!(index.frame_at(raw_offset), i as u64);
                assert_eq!(
                    index.frame_at(raw_offset + u64::from(raw_bytes) - 1),
                    i as u64
                );
                raw_offset += u64::from(raw_bytes);
            }
            assert_eq!(index.raw_bytes(), raw_offset);
        }
    }
}

#[test]
fn an_entry_takes_at_most_24_bytes() {
    for seed in seeds() {
        let index = Index::read(&seed.image.as_slice()).unwrap();
        let fixed = size_of::<Index>() + 3 * 8;
        let entries = index.memory_bytes().saturating_sub(fixed);
        assert!(
            entries as u64 <= 24 * index.frames(),
            "{}: {entries}",
            seed.name
        );
    }
}

#[test]
fn what_cannot_be_written_is_refused_with_advice() {
    let layout = Layout {
        frame_bytes: 65536,
        raw_bytes: None,
        seekable: false,
        uneven: false,
        thin: false,
    };
    let refuse = |format: Format, layout: &Layout| match format.writer(layout) {
        Ok(_) => panic!("{format} takes {layout:?}"),
        Err(error) => error.to_string(),
    };
    assert!(refuse(Format::Cloop, &layout).contains("--format cloop-lzo"));
    for frame_bytes in [0, 2048, 65535, 2 << 20] {
        let message = refuse(
            Format::Zstd,
            &Layout {
                frame_bytes,
                ..layout
            },
        );
        assert!(message.contains("power of two"), "{message}");
    }
    let empty = Layout {
        raw_bytes: Some(0),
        ..layout
    };
    assert!(refuse(Format::Lz4, &empty).contains("holds no bytes"));
}

//! Thin images: holes take no space, and cannot be moved or forged.
//!
//! Redundant tables: damage of any of their bytes is reported.

use super::super::audit::Audit;
use super::super::tree::{Hash, Signature};
use super::super::write::{Layout, Packed};
use super::*;
use crate::codec;

const FRAME_BYTES: u32 = 64 << 10;
const TIB: u64 = 1 << 40;

/// A piece of an image: frames of zeros, or one frame of this byte.
#[derive(Clone, Copy)]
enum Piece {
    Holes(u64),
    Frame(u8),
}

fn deflated(format: Format, raw: &[u8]) -> Vec<u8> {
    let mut stored = Vec::new();
    let tune = codec::Tune::Speed;
    let mut deflater = codec::make_tuned_deflater(format.codec(), None, tune).unwrap();
    deflater.deflate(raw, &mut stored).unwrap();
    stored
}

/// A thin image of these pieces, with a hash tree, and its root.
fn image(format: Format, pieces: &[Piece]) -> (Vec<u8>, Hash) {
    let layout = Layout {
        frame_bytes: FRAME_BYTES,
        raw_bytes: None,
        seekable: true,
        uneven: false,
        thin: true,
    };
    let mut writer = format.writer(&layout).unwrap();
    assert!(writer.seal(Box::new(|_| Vec::new())));
    let mut image = writer.start();
    let mut number = 0;
    for piece in pieces {
        match *piece {
            Piece::Holes(frames) => {
                let bytes = frames * u64::from(FRAME_BYTES);
                writer.push_holes(frames, bytes).unwrap();
                number += frames;
            }
            Piece::Frame(byte) => {
                let raw = vec![byte; FRAME_BYTES as usize];
                let stored = deflated(format, &raw);
                let packed = Packed::of(&stored, &raw).with_leaf(number, &stored);
                image.extend_from_slice(&stored);
                writer.push(&packed).unwrap();
                number += 1;
            }
        }
    }
    let ending = writer.finish(&mut image).unwrap();
    (image, ending.root.unwrap())
}

fn trusted(image: &[u8], root: &Hash) -> Result<Index, FormatError> {
    let mut index = Index::read(&image)?;
    index.trust(&image, &mut |found, _| match found == root {
        true => Ok(()),
        false => Err("another root".to_owned()),
    })?;
    Ok(index)
}

const FORMATS: [Format; 2] = [Format::Zstd, Format::Lz4];

#[test]
fn eight_tebibytes_of_holes_take_a_few_hundred_bytes() {
    let frames = 8 * TIB / u64::from(FRAME_BYTES);
    let pieces = [
        Piece::Frame(1),
        Piece::Holes(frames / 2),
        Piece::Frame(2),
        Piece::Holes(frames / 2 - 3),
        Piece::Frame(3),
    ];
    for format in FORMATS {
        let (image, root) = image(format, &pieces);
        assert!(image.len() < 2000, "{format}: {} bytes", image.len());
        let index = trusted(&image, &root).unwrap();
        assert!(index.is_thin());
        assert_eq!(index.raw_bytes(), 8 * TIB);
        assert_eq!(index.frames(), frames);
        assert_eq!(
            (index.stored_frames(), index.zero_frames()),
            (3, frames - 3)
        );
        assert!(index.memory_bytes() < 2000, "{}", index.memory_bytes());
        let stored: Vec<u64> = index.stored_in(0..frames).collect();
        assert_eq!(stored, [0, frames / 2 + 1, frames - 1]);
        assert_eq!(index.hole_run(0), 0);
        assert_eq!(index.hole_run(7), frames / 2 - 6);
        assert_eq!(index.hole_run(frames - 2), 1);
        let mut reader = FrameReader::new(false);
        for (number, byte) in [
            (0, 1),
            (1, 0),
            (frames / 2 + 1, 2),
            (frames - 2, 0),
            (frames - 1, 3),
        ] {
            let frame = index.frame(number);
            assert_eq!(frame.is_hole(), byte == 0);
            assert_eq!(index.frame_at(frame.raw_offset + 5), number);
            let raw = reader.read(&image.as_slice(), &frame).unwrap();
            assert!(raw.iter().all(|&it| it == byte), "{format}: frame {number}");
        }
    }
}

#[test]
fn an_image_of_nothing_but_holes_is_one() {
    for format in FORMATS {
        let (image, root) = image(format, &[Piece::Holes(1 << 24)]);
        let index = trusted(&image, &root).unwrap();
        assert_eq!(index.raw_bytes(), TIB);
        assert_eq!(index.stored_frames(), 0);
        assert!(index.is_zero(0) && index.is_zero((1 << 24) - 1));
    }
}

/// A decoder that goes frame by frame would place all data after a hole at a wrong offset.
#[test]
fn decoders_that_know_no_holes_refuse_it_at_once() {
    let image = image(Format::Zstd, &[Piece::Holes(1000), Piece::Frame(1)]).0;
    let mut out = vec![0; 1 << 20];
    assert!(zstd_safe::decompress(&mut out[..], &image).is_err());
    let image = super::super::foreign::recognize(&self::image(Format::Lz4, &[Piece::Holes(9)]).0);
    assert_eq!(image.map(|it| it.kind), Some("lz4 file"));
}

#[test]
fn holes_that_are_moved_are_refused_by_who_knows_the_root() {
    for format in FORMATS {
        let right = [Piece::Frame(1), Piece::Holes(5), Piece::Frame(2)];
        let (_, root) = image(format, &right);
        for wrong in [
            &[Piece::Holes(5), Piece::Frame(1), Piece::Frame(2)][..],
            &[
                Piece::Frame(1),
                Piece::Holes(4),
                Piece::Frame(2),
                Piece::Holes(1),
            ],
            &[Piece::Frame(1), Piece::Holes(6), Piece::Frame(2)],
            &[Piece::Frame(1), Piece::Holes(6)],
        ] {
            let (forged, claimed) = image(format, wrong);
            assert_ne!(claimed, root);
            assert!(trusted(&forged, &claimed).is_ok());
            let refused = trusted(&forged, &root).unwrap_err().to_string();
            assert!(refused.contains("another root"), "{refused}");
        }
    }
}

/// An index with these entries and a valid checksum, after the header of a thin image.
fn forged(raw_bytes: u64, entries: &[(u32, u64)], extra: &[u8]) -> Vec<u8> {
    let mut content = b"sidecore".to_vec();
    content.extend([4, 0, 0, 0]);
    content.extend(FRAME_BYTES.to_le_bytes());
    content.extend((entries.len() as u64).to_le_bytes());
    content.extend(raw_bytes.to_le_bytes());
    for (word, check) in entries {
        content.extend(word.to_le_bytes());
        content.extend(check.to_le_bytes());
    }
    let check = xxhash_rust::xxh3::xxh3_64(&content);
    content.extend(check.to_le_bytes());
    content.extend((content.len() as u32 + 16).to_le_bytes());
    content.extend(b"SIDX");
    let mut image = super::super::thin::head(CodecId::Zstd).to_vec();
    image.extend(extra);
    image.extend(0x184D_2A5C_u32.to_le_bytes());
    image.extend((content.len() as u32).to_le_bytes());
    image.extend(content);
    image.extend(0x184D_2A5E_u32.to_le_bytes());
    image.extend(9_u32.to_le_bytes());
    image.extend(0_u32.to_le_bytes());
    image.push(0x80);
    image.extend(0x8F92_EAB1_u32.to_le_bytes());
    image
}

#[test]
fn runs_that_cannot_be_are_refused() {
    let hole = 1 << 31;
    let frame = u64::from(FRAME_BYTES);
    let fine = forged(10 * frame, &[(hole, 10)], &[]);
    assert_eq!(Index::read(&fine.as_slice()).unwrap().frames(), 10);
    for (raw_bytes, entries, message) in [
        (10 * frame, &[(hole, 11)][..], "past the end"),
        (10 * frame, &[(hole, u64::MAX)], "past the end"),
        (10 * frame, &[(hole, 4), (hole, 6)], "follows another one"),
        (10 * frame, &[(hole, 0)], "empty"),
        (10 * frame, &[(hole, 9)], "not the sum"),
        (u64::MAX, &[(hole, u64::MAX / frame + 1)], "8 EiB"),
        (10 * frame, &[(0, 10)], "no compressed bytes"),
        (
            10 * frame,
            &[(hole, 9), (7, 1), (hole, 1)],
            "behind the file",
        ),
        (0, &[(hole, 1)], "past the end"),
        (0, &[], "holds no bytes"),
    ] {
        let image = forged(raw_bytes, entries, &[]);
        let error = super::error(&image);
        assert!(error.contains(message), "{error}, not {message}");
    }
    // The largest device is one hole, and costs nothing.
    let largest = i64::MAX as u64;
    let image = forged(largest, &[(hole, largest.div_ceil(frame))], &[]);
    let index = Index::read(&image.as_slice()).unwrap();
    assert_eq!(index.raw_bytes(), largest);
    assert_eq!(index.hole_run(3), index.frames() - 3);
}

/// Versions before thin images find the index and report that they do not support it; none takes
/// the file for a shorter image. The fields that they examine are checked here.
#[test]
fn older_versions_find_an_index_that_they_refuse() {
    let (image, _) = image(Format::Zstd, &[Piece::Holes(1000), Piece::Frame(1)]);
    // The magic number of zstd frames, and an empty seek table at the end, checksums on.
    assert_eq!(image[..4], 0xFD2F_B528_u32.to_le_bytes());
    let footer = &image[image.len() - 9..];
    assert_eq!(footer, [0, 0, 0, 0, 0x80, 0xB1, 0xEA, 0x92, 0x8F]);
    // Before it lies the index frame, whose entries have 12 bytes each, which the older versions
    // check before the version.
    let index_end = image.len() - 17;
    assert_eq!(&image[index_end - 4..index_end], b"SIDX");
    let total = u32::from_le_bytes(image[index_end - 8..index_end - 4].try_into().unwrap());
    let start = index_end - total as usize;
    let entries = u64::from_le_bytes(image[start + 24..start + 32].try_into().unwrap());
    assert_eq!(u64::from(total), 8 + 32 + 12 * entries + 16);
    assert_eq!((image[start + 16], entries), (4, 2));
}

/// The table faults of an image whose frames are all read; `None` if it is no longer such an image
/// (the first bytes determine that) or has a bad frame.
fn faults(format: Format, image: &[u8]) -> Option<Vec<String>> {
    let index = Index::read(&image).ok()?;
    if index.format() != format {
        return None;
    }
    let mut audit = Audit::begin(&image, &index).unwrap();
    let mut reader = FrameReader::of(&index, true);
    for number in 0..index.frames() {
        let frame = index.frame(number);
        reader.read(&image, &frame).ok()?;
        audit.frame(&frame, Some(reader.stored_end())).unwrap();
    }
    Some(audit.finish(&index).unwrap())
}

/// An image with an unsigned hash tree.
fn with_tree(format: Format, raw: &[u8]) -> Vec<u8> {
    let layout = Layout {
        frame_bytes: 4096,
        raw_bytes: Some(raw.len() as u64),
        seekable: true,
        uneven: false,
        thin: false,
    };
    let mut writer = format.writer(&layout).unwrap();
    assert!(writer.seal(Box::new(|_| Vec::<Signature>::new())));
    let mut image = writer.start();
    let mut deflater =
        codec::make_tuned_deflater(format.codec(), None, codec::Tune::Speed).unwrap();
    for (number, raw) in raw.chunks(4096).enumerate() {
        let mut stored = Vec::new();
        deflater.deflate(raw, &mut stored).unwrap();
        let packed = write::Packed::of(&stored, raw).with_leaf(number as u64, &stored);
        image.extend_from_slice(&stored);
        writer.push(&packed).unwrap();
    }
    writer.finish(&mut image).unwrap();
    image
}

#[test]
fn images_as_they_were_written_have_no_faults() {
    for seed in seeds() {
        if !seed.name.starts_with("encrypted") {
            assert_eq!(
                faults(seed.format, &seed.image),
                Some(Vec::new()),
                "{}",
                seed.name
            );
        }
    }
}

#[test]
fn a_bit_changed_anywhere_is_found() {
    let zstd = seed("zstd");
    let images = [
        ("zstd", zstd.image.clone()),
        ("zstd, uneven", seed("zstd, uneven").image),
        ("lz4", seed("lz4").image),
        ("zstd with a tree", with_tree(Format::Zstd, &zstd.raw)),
        ("lz4 with a tree", with_tree(Format::Lz4, &zstd.raw)),
    ];
    for (name, image) in images {
        let format = Index::read(&image.as_slice()).unwrap().format();
        assert_eq!(faults(format, &image), Some(Vec::new()), "{name}");
        let mut said = std::collections::BTreeSet::new();
        // A byte without a meaning, after the number of signatures.
        let tree = image.windows(8).position(|bytes| bytes == b"sidetree");
        let unused = tree.map(|at| at + 11);
        for at in (0..image.len()).filter(|&at| Some(at) != unused) {
            let mut damaged = image.clone();
            damaged[at] ^= 1 << (at % 8);
            match faults(format, &damaged) {
                Some(faults) if faults.is_empty() => panic!("{name}: byte {at} of {}", image.len()),
                Some(faults) => said.extend(
                    faults
                        .iter()
                        .filter_map(|fault| Some(fault.split_once(" is damaged: ")?.0.to_owned())),
                ),
                None => {}
            }
        }
        let tables = ["the hash tree", "the index frame", "the seek table"];
        let wanted = match name {
            "zstd with a tree" => &tables[..],
            "lz4 with a tree" => &tables[..1],
            "lz4" => &[],
            _ => &tables[1..],
        };
        assert!(said.iter().eq(wanted), "{name}: {said:?}");
    }
}

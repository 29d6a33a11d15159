//! Sidecar indexes of files of many zstd frames: the right bytes or an error, whichever file is
//! changed.

use super::super::read_at::Bytes;
use super::super::sidecar::{Scan, Walked, read};
use super::*;
use zstd_safe::{CCtx, CParameter};

/// A frame of `raw`, with or without the size of its contents.
fn frame(raw: &[u8], sized: bool) -> Vec<u8> {
    let mut context = CCtx::create();
    for parameter in [
        CParameter::ContentSizeFlag(sized),
        CParameter::ChecksumFlag(true),
    ] {
        context.set_parameter(parameter).unwrap();
    }
    let mut stored = Vec::with_capacity(zstd_safe::compress_bound(raw.len()));
    context.compress2(&mut stored, raw).unwrap();
    stored
}

fn skippable(bytes: usize) -> Vec<u8> {
    let mut frame = 0x184D_2A50_u32.to_le_bytes().to_vec();
    frame.extend((bytes as u32).to_le_bytes());
    frame.resize(8 + bytes, 7);
    frame
}

/// A file, and its contents.
fn file(sized: bool) -> (Vec<u8>, Vec<u8>) {
    let raw: Vec<u8> = (0..9000_u32).flat_map(|i| (i / 5).to_le_bytes()).collect();
    let mut file = Vec::new();
    let mut rest = &raw[..];
    for bytes in [1000, 70, 12_000, 1, 300, raw.len()] {
        let (head, tail) = rest.split_at(bytes.min(rest.len()));
        file.extend(skippable(4));
        file.extend(frame(head, sized));
        file.extend(frame(&[], sized));
        rest = tail;
    }
    file.extend(skippable(100_000));
    (file, raw)
}

fn index_of(file: &[u8]) -> Result<Vec<u8>, FormatError> {
    let mut scan = Scan::new(&file)?;
    let mut walked = Walked::default();
    let (mut stored, mut raw) = (Vec::new(), vec![0; 1 << 20]);
    while scan.next(&mut stored)? {
        let bytes = zstd_safe::decompress(&mut raw[..], &stored).unwrap();
        walked.push(&stored, xxhash_rust::xxh3::xxh3_64(&stored), bytes as u32);
    }
    let mut index = Vec::new();
    walked.write(file.len() as u64, &mut index)?;
    Ok(index)
}

/// Opens `file` by `index` and compares the contents with `raw`: true if all frames were read.
fn reads(file: &[u8], index: &[u8], raw: &[u8]) -> Result<bool, FormatError> {
    reads_by(&Index::read_sidecar(&file, &index, true)?, file, raw)
}

/// The same, with a parsed index.
fn reads_by(index: &Index, file: &[u8], raw: &[u8]) -> Result<bool, FormatError> {
    assert_eq!(index.raw_bytes(), raw.len() as u64);
    let mut reader = FrameReader::of(index, false);
    let mut whole = true;
    for number in 0..index.frames() {
        let frame = index.frame(number);
        let (start, end) = (frame.raw_offset as usize, frame.raw_bytes as usize);
        match reader.read(&file, &frame) {
            Ok(bytes) => assert!(bytes == &raw[start..start + end], "frame {number}"),
            Err(_) => whole = false,
        }
    }
    Ok(whole)
}

#[test]
fn a_file_is_read_by_the_index_beside_it() {
    for sized in [false, true] {
        let (file, raw) = file(sized);
        let index = index_of(&file).unwrap();
        assert!(reads(&file, &index, &raw).unwrap());
        // Without the index the beginnings of frames are not known.
        let message = error(&file);
        assert!(message.contains("sidecore block index FILE"), "{message}");
    }
}

/// Headers of remote files are not read: the frames' own checksums detect a wrong file.
#[test]
fn a_file_far_away_that_was_changed_gives_errors_when_it_is_read() {
    let (file, raw) = file(false);
    let index = index_of(&file).unwrap();
    let far = |file: &[u8], index: &[u8]| Index::read_sidecar(&file, &index, false);
    let found = far(&file, &index).unwrap();
    assert!(reads_by(&found, &file, &raw).unwrap());
    let last = found.frame(found.frames() - 1);
    let end = (last.offset + u64::from(last.stored_bytes)) as usize;
    for at in (0..end).step_by(7) {
        let mut changed = file.clone();
        changed[at] ^= 1 << (at % 8);
        let found = far(&changed, &index).unwrap();
        assert!(!reads_by(&found, &changed, &raw).unwrap(), "byte {at}");
    }
    for at in 0..index.len() {
        let mut changed = index.clone();
        changed[at] ^= 1 << (at % 8);
        // The checksum of headers is not examined.
        assert_eq!(
            far(&file, &changed).is_ok(),
            (32..40).contains(&at),
            "byte {at}"
        );
    }
    assert!(far(&file[..file.len() - 1], &index).is_err());
    // Frames after the last one in the index.
    let more = [&file[..], &frame(b"more", true)].concat();
    let mut other = index.clone();
    other[24..32].copy_from_slice(&(more.len() as u64).to_le_bytes());
    let error = far(&more, &other).unwrap_err().to_string();
    assert!(error.contains("frames follow"), "{error}");
    let much = [&file[..], &skippable(300 << 10)].concat();
    other[24..32].copy_from_slice(&(much.len() as u64).to_le_bytes());
    let error = far(&much, &other).unwrap_err().to_string();
    assert!(error.contains("frames follow"), "{error}");
}

#[test]
fn a_file_that_was_changed_gives_errors() {
    let (file, raw) = file(false);
    let index = index_of(&file).unwrap();
    let frames = read(
        &Bytes::new(&&file[..]).unwrap(),
        &Bytes::new(&&index[..]).unwrap(),
    )
    .unwrap();
    let last = frames.frame(frames.frames() - 1);
    let end = (last.offset + u64::from(last.stored_bytes)) as usize;
    // All bytes except most of the table at the end.
    for at in 0..end + 100 {
        let mut changed = file.clone();
        changed[at] ^= 1 << (at % 8);
        // Bytes after the last frame with contents belong to no frame.
        let is_whole = reads(&changed, &index, &raw).is_ok_and(|whole| whole);
        assert!(!is_whole || at >= end, "byte {at}");
        if !at.is_multiple_of(13) {
            continue;
        }
        let cut = reads(&file[..at], &index, &raw).unwrap_err().to_string();
        assert!(cut.contains("another size"), "{cut}");
    }
    let mut longer = file.clone();
    longer.extend(frame(b"more", true));
    assert!(reads(&longer, &index, &raw).is_err());
}

#[test]
fn an_index_that_was_changed_is_refused() {
    let (file, raw) = file(true);
    let index = index_of(&file).unwrap();
    for at in 0..index.len() {
        let mut changed = index.clone();
        changed[at] ^= 1 << (at % 8);
        let error = reads(&file, &changed, &raw).unwrap_err().to_string();
        assert!(error.contains("not to be used"), "byte {at}: {error}");
        assert!(reads(&file, &index[..at], &raw).is_err(), "cut to {at}");
    }
}

#[test]
fn an_index_that_was_forged_is_refused_or_gives_errors() {
    let (file, raw) = file(true);
    let index = index_of(&file).unwrap();
    let entries = 40 + 40;
    let mut refused = 0;
    for frame in 0..6 {
        for (field, value) in [(0, 1_u32), (0, 1 << 31), (12, 1), (12, 1 << 10), (4, 1)] {
            let mut forged = index.clone();
            let at = entries + frame * 16 + field;
            let old = u32::from_le_bytes(forged[at..at + 4].try_into().unwrap());
            forged[at..at + 4].copy_from_slice(&(old ^ value).to_le_bytes());
            // The sum of contents and the checksum, as a forger would set them.
            if field == 12 {
                let sum = raw.len() as u64 - u64::from(old) + u64::from(old ^ value);
                forged[40 + 32..40 + 40].copy_from_slice(&sum.to_le_bytes());
            }
            let end = forged.len() - 16;
            let check = xxhash_rust::xxh3::xxh3_64(&forged[48..end]);
            forged[end..end + 8].copy_from_slice(&check.to_le_bytes());
            match reads(&file, &forged, &raw) {
                // A checksum was changed: its frame cannot be read.
                Ok(whole) => assert!(field == 4 && !whole, "frame {frame}, field {field}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert_eq!(refused, 6 * 4);
}

#[test]
fn what_cannot_be_indexed_says_why() {
    let (file, _) = file(true);
    let says = |file: &[u8]| index_of(file).unwrap_err().to_string();
    let half = file.len() - 100_008 - 20;
    assert!(says(&file[..half]).contains("is cut short"));
    let mut other = file[..half].to_vec();
    other.truncate(12);
    other.extend(b"other bytes");
    assert!(
        says(&other).contains("is none of zstd's"),
        "{}",
        says(&other)
    );
    // A header that promises 64 MiB, and one byte.
    let mut large = FRAME.to_vec();
    large[5..9].copy_from_slice(&(FRAME_BYTES_MAX + 1).to_le_bytes());
    assert!(
        says(&large).contains("pack --decompress"),
        "{}",
        says(&large)
    );
    large[5..9].copy_from_slice(&0_u32.to_le_bytes());
    assert!(says(&large).contains("no bytes"), "{}", says(&large));
    // A dictionary's number.
    let dictionary = [&FRAME[..4], &[0xA1, 9], &FRAME[5..]].concat();
    assert!(says(&dictionary).contains("dictionary"));
    let mut apart = skippable(70_000);
    apart.extend(frame(b"behind", true));
    assert!(says(&apart).contains("too many bytes in front"));
    let many = [skippable(0).repeat(9), frame(b"behind", true)].concat();
    assert!(says(&many).contains("too many bytes in front"));
}

/// A frame with a size of four bytes and one empty raw block.
const FRAME: [u8; 12] = [0x28, 0xB5, 0x2F, 0xFD, 0xA0, 0, 0, 0, 0, 1, 0, 0];

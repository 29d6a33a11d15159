//! Exact limits of the format, the properties of an index, and lookups in it.

use super::super::read_at::PIECE_BYTES;
use super::super::write::{Packed, is_zero};
use super::super::*;
use super::{error, seed};
use crate::codec::CodecId;

fn frame(offset: u64, stored_bytes: u32, raw_bytes: u32) -> Frame {
    Frame {
        offset,
        stored_bytes,
        raw_bytes,
        raw_offset: 0,
        number: 0,
        codec: CodecId::Zlib,
        check: FrameCheck::None,
    }
}

/// The message with which a file of `file_bytes` refuses these frames; `None` if it accepts them.
fn refusal(file_bytes: u64, frames: &[Frame]) -> Option<String> {
    let mut builder = Builder::new(Format::Cloop, "test", file_bytes, frames.len() as u64);
    let pushed = frames
        .iter()
        .try_for_each(|&frame| builder.push(frame, false));
    let finished = pushed.and_then(|()| builder.finish());
    finished.err().map(|error| error.to_string())
}

#[test]
fn a_frame_may_be_as_large_as_the_limits_and_no_larger() {
    assert_eq!(stored_bytes_limit(0), 4096);
    assert_eq!(stored_bytes_limit(1000), 6096);
    let file = 1 << 40;
    assert_eq!(refusal(file, &[frame(0, 100, FRAME_BYTES_MAX)]), None);
    let large = refusal(file, &[frame(0, 100, FRAME_BYTES_MAX + 1)]).unwrap();
    assert!(large.contains("the limit is 67108864"), "{large}");
    assert_eq!(refusal(file, &[frame(0, 6096, 1000)]), None);
    let stored = refusal(file, &[frame(0, 6097, 1000)]).unwrap();
    assert!(stored.contains("far more than its contents"), "{stored}");
    for (nothing, says) in [
        (frame(0, 100, 0), "inflates to nothing"),
        (frame(0, 0, 100), "no compressed bytes"),
    ] {
        let message = refusal(file, &[nothing]).unwrap();
        assert!(message.contains(says), "{message}");
    }
}

#[test]
fn a_frame_ends_inside_the_file_and_below_sixty_bits() {
    assert_eq!(refusal(300, &[frame(200, 100, 100)]), None);
    let last = (1 << 60) - 1;
    assert_eq!(refusal(u64::MAX, &[frame(last - 100, 100, 100)]), None);
    for (file_bytes, outside) in [
        (299, frame(200, 100, 100)),
        (u64::MAX, frame(last - 99, 100, 100)),
        (u64::MAX, frame(u64::MAX - 10, 100, 100)),
    ] {
        let message = refusal(file_bytes, &[outside]).unwrap();
        assert!(message.contains("outside the file"), "{message}");
        assert!(message.contains("frame 0 of 1"), "{message}");
    }
}

#[test]
fn checksums_are_those_of_all_frames_or_of_none() {
    let with = |check| Frame {
        check,
        ..frame(0, 10, 10)
    };
    let (stored, raw) = (with(FrameCheck::Stored(1)), with(FrameCheck::Raw(2)));
    let none = with(FrameCheck::None);
    for alike in [stored, raw, none] {
        assert_eq!(refusal(100, &[alike, alike]), None);
    }
    for mixed in [[stored, none], [none, raw], [stored, raw]] {
        let message = refusal(100, &mixed).unwrap();
        assert!(message.contains("no checksum, though others"), "{message}");
    }
    let says = |frame: Frame, codec| {
        let mut builder = Builder::new(Format::Cloop, "test", 100, 1);
        builder.push(Frame { codec, ..frame }, false).unwrap();
        let index = builder.finish().unwrap();
        (index.is_checked(), index.checksums())
    };
    assert!(says(stored, CodecId::Zstd).0 && says(raw, CodecId::Zstd).0);
    assert!(!says(none, CodecId::Zstd).0);
    assert!(says(stored, CodecId::Zlib).1.starts_with("XXH3-64"));
    assert!(says(raw, CodecId::Zlib).1.starts_with("XXH64"));
    assert!(says(none, CodecId::Zlib).1.contains("zlib"));
    assert!(says(none, CodecId::Xz).1.contains("xz"));
    assert_eq!(says(none, CodecId::Lz4Block).1, "none");
}

#[test]
fn frames_anywhere_in_the_file_keep_places_sizes_and_codecs() {
    // The third does not follow the second: from there on the size of each is stored.
    let codecs = [CodecId::Zlib, CodecId::Store, CodecId::Lzo1x, CodecId::Xz];
    let places = [(100, 10), (110, 20), (500, 30), (40, 5)];
    let mut builder = Builder::new(Format::Cloop, "test", 1000, 4);
    for ((offset, stored_bytes), codec) in places.into_iter().zip(codecs) {
        let frame = frame(offset, stored_bytes, 512);
        builder.push(Frame { codec, ..frame }, false).unwrap();
    }
    let index = builder.finish().unwrap();
    for (i, ((offset, stored_bytes), codec)) in places.into_iter().zip(codecs).enumerate() {
        let frame = index.frame(i as u64);
        assert_eq!((frame.offset, frame.stored_bytes), (offset, stored_bytes));
        assert_eq!((frame.codec, frame.raw_offset), (codec, 512 * i as u64));
    }
    assert_eq!(index.codec(), CodecId::Zlib);
    assert_eq!(index.stored_bytes_max(), 30);
    // Four places of eight bytes and four sizes of four.
    assert_eq!(index.memory_bytes(), size_of::<Index>() + 48);
}

#[test]
fn the_index_knows_what_it_takes_and_which_frames_are_zeros() {
    let mut builder = Builder::new(Format::Lz4, "test", 10_000, 130);
    for i in 0..130 {
        let check = FrameCheck::Stored(i);
        let frame = frame(10 * i, 10, 1000);
        builder
            .push(Frame { check, ..frame }, i == 3 || i == 64 || i == 67)
            .unwrap();
    }
    let index = builder.finish().unwrap();
    assert_eq!((index.frames(), index.zero_frames()), (130, 3));
    let zeros: Vec<u64> = (0..400).filter(|&i| index.is_zero(i)).collect();
    assert_eq!(zeros, [3, 64, 67]);
    // 131 places, 130 checksums, and one bit per frame in whole words.
    let taken = 8 * (131 + 130 + 3);
    assert_eq!(index.memory_bytes(), size_of::<Index>() + taken);
    // A thousand bytes is not a power of two.
    for (at, wanted) in [(0, 0), (999, 0), (1000, 1), (129_000, 129), (129_999, 129)] {
        assert_eq!(index.frame_at(at), wanted, "byte {at}");
    }
    assert_eq!(index.frame(129).check, FrameCheck::Stored(129));
}

#[test]
#[should_panic(expected = "byte 1000 of 1000")]
fn no_frame_holds_the_byte_behind_the_last() {
    let mut builder = Builder::new(Format::Lz4, "test", 100, 1);
    builder.push(frame(0, 10, 1000), false).unwrap();
    let _ = builder.finish().unwrap().frame_at(1000);
}

#[test]
#[should_panic(expected = "frame 1 of 1")]
fn there_is_no_frame_behind_the_last() {
    let mut builder = Builder::new(Format::Lz4, "test", 100, 1);
    builder.push(frame(0, 10, 1000), false).unwrap();
    let _ = builder.finish().unwrap().frame(1);
}

#[test]
fn bytes_are_had_up_to_the_files_end() {
    let file: Vec<u8> = (0..100).collect();
    let source = file.as_slice();
    let bytes = Bytes::new(&source).unwrap();
    assert_eq!(bytes.size, 100);
    assert_eq!(bytes.array::<4>(96).unwrap(), Some([96, 97, 98, 99]));
    assert_eq!(bytes.array::<4>(97).unwrap(), None);
    assert_eq!(bytes.array::<4>(u64::MAX).unwrap(), None);
    assert_eq!(bytes.tail::<2>().unwrap(), Some([98, 99]));
    assert!(bytes.tail::<100>().unwrap().is_some());
    assert!(bytes.tail::<101>().unwrap().is_none());
    let mut four = [0; 4];
    bytes.fill(&mut four, 96).unwrap();
    let message = bytes.fill(&mut four, 97).unwrap_err().to_string();
    assert!(message.contains("97"), "{message}");
}

#[test]
fn tables_are_read_in_pieces_and_each_record_once() {
    // Two and a half pieces of records of twelve bytes, which do not divide a piece.
    let count = (5 * PIECE_BYTES / 2 / 12) as u64;
    let mut file = vec![7; 3];
    for i in 0..count {
        file.extend(i.to_le_bytes());
        file.extend([9; 4]);
    }
    file.push(7);
    let source = file.as_slice();
    let bytes = Bytes::new(&source).unwrap();
    let mut next = 0_u64;
    let each = |i: u64, record: &[u8; 12]| {
        assert_eq!((i, &record[..8]), (next, &next.to_le_bytes()[..]));
        assert_eq!(record[8..], [9; 4]);
        next += 1;
        Ok(())
    };
    bytes.records::<12>(3, count, each).unwrap();
    assert_eq!(next, count);
    let mut lengths = Vec::new();
    let each = |start: u64, piece: &[u8]| {
        lengths.push((start, piece.to_vec()));
        Ok(())
    };
    bytes.pieces(3, 25, 10, each).unwrap();
    let wanted = [(0, &file[3..13]), (10, &file[13..23]), (20, &file[23..28])];
    assert_eq!(
        lengths,
        wanted.map(|(start, piece)| (start, piece.to_vec()))
    );
}

#[test]
fn a_file_has_its_size_and_a_folder_is_none() {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[5; 700]).unwrap();
    assert_eq!(Bytes::new(&file).unwrap().size, 700);
    let index = Index::open(&file).unwrap();
    assert_eq!((index.format(), index.raw_bytes()), (Format::Raw, 700));
    let folder = std::fs::File::open("/").unwrap();
    let folder = Index::open(&folder).map(|index| index.format());
    assert!(matches!(folder, Err(FormatError::Directory)), "{folder:?}");
    let empty = tempfile::tempfile().unwrap();
    assert!(Index::open_raw(&empty).is_err());
    // A file that another program should convert first is refused, unless opened as raw.
    let mut qcow2 = tempfile::tempfile().unwrap();
    qcow2.write_all(b"QFI\xfb\0\0\0\x03").unwrap();
    assert!(matches!(
        Index::open(&qcow2),
        Err(FormatError::Foreign { .. })
    ));
    assert_eq!(Index::open_raw(&qcow2).unwrap().raw_bytes(), 8);
}

#[test]
fn an_overlay_is_no_disk_whatever_was_written_to_it() {
    let image = seed("foreign zstd, checked").image;
    // The last bytes of an overlay are those that a guest wrote, here a whole image with its table.
    for written in [&b""[..], &[0; 4096], &image[..]] {
        let overlay = [&OVERLAY_MAGIC[..], written].concat();
        let bytes = overlay.as_slice();
        assert!(matches!(Index::read(&bytes), Err(FormatError::Overlay)));
        let raw = Index::read_raw(&bytes).unwrap();
        assert_eq!(raw.raw_bytes(), overlay.len() as u64);
    }
}

#[test]
fn a_packed_frame_is_described_by_its_bytes() {
    let packed = Packed::of(b"compressed", b"contents");
    assert_eq!((packed.stored_bytes, packed.raw_bytes), (10, 8));
    assert_eq!(packed.stored_end.to_le_bytes(), *b"ssed");
    assert_eq!(
        packed.stored_check,
        xxhash_rust::xxh3::xxh3_64(b"compressed")
    );
    assert!(!packed.zero && Packed::of(b"x", &[0; 70]).zero);
    assert_eq!(Packed::of(b"abc", b"x").stored_end, 0);
    // One byte in a word of 64, or after the last whole one.
    assert!(is_zero(&[]) && is_zero(&[0; 64]) && is_zero(&[0; 200]));
    for at in 0..200 {
        let mut bytes = [0; 200];
        bytes[at] = 1;
        assert!(!is_zero(&bytes), "byte {at}");
    }
}

#[test]
fn formats_are_named_and_read_back() {
    let names = ["zstd", "lz4", "cloop-lzo", "cloop", "raw"];
    let codecs = [
        CodecId::Zstd,
        CodecId::Lz4Frame,
        CodecId::Lzo1x,
        CodecId::Zlib,
        CodecId::Store,
    ];
    for ((format, name), codec) in Format::ALL.into_iter().zip(names).zip(codecs) {
        assert_eq!(format.to_string(), name);
        assert_eq!(name.parse(), Ok(format));
        assert_eq!(format.codec(), codec);
        for frame_bytes in [4096, 65536, 1 << 20] {
            let layout = Layout {
                frame_bytes,
                raw_bytes: Some(1 << 30),
                seekable: true,
                uneven: false,
                thin: false,
            };
            assert_eq!(format.writer(&layout).unwrap().codec(), codec);
        }
    }
    let message = "zip".parse::<Format>().unwrap_err();
    assert!(
        message.contains("`zip`") && message.contains("cloop-lzo"),
        "{message}"
    );
}

#[test]
fn a_cloop_image_whose_source_changed_its_size_is_not_finished() {
    let layout = Layout {
        frame_bytes: 4096,
        raw_bytes: Some(3 * 4096 - 1),
        seekable: true,
        uneven: false,
        thin: false,
    };
    let packed = Packed::of(&[1; 100], &[1; 4096]);
    for (blocks, finishes) in [(2, false), (3, true), (4, false)] {
        let mut writer = Format::Cloop.writer(&layout).unwrap();
        assert!(writer.pads_last_frame());
        // Header, and four offsets of three blocks.
        assert_eq!(writer.start(), [0; 136 + 32]);
        for _ in 0..blocks {
            writer.push(&packed).unwrap();
        }
        let mut tail = Vec::new();
        let ending = writer.finish(&mut tail);
        assert_eq!(ending.is_ok(), finishes, "{blocks} blocks");
        if let Ok(ending) = ending {
            let front = ending.front.unwrap();
            assert!(tail.is_empty() && front.len() == 136 + 32);
            assert_eq!(front[128..136], [0, 0, 16, 0, 0, 0, 0, 3]);
            assert_eq!(front[136..144], 168_u64.to_be_bytes());
            assert_eq!(front[160..168], 468_u64.to_be_bytes());
        }
    }
    // To a pipe the header is written last, and the blocks do not begin at byte 0.
    let pipe = Layout {
        raw_bytes: None,
        seekable: false,
        uneven: false,
        thin: false,
        ..layout
    };
    let mut writer = Format::CloopLzo.writer(&pipe).unwrap();
    assert_eq!(writer.start(), [0; 512]);
    writer.push(&packed).unwrap();
    let mut tail = Vec::new();
    writer.finish(&mut tail).unwrap();
    assert_eq!(tail.len(), 16 + 136);
    assert_eq!(tail[..8], (512_u64 | 4 << 60).to_be_bytes());
    assert_eq!(tail[8..16], (612_u64 | 4 << 60).to_be_bytes());
    assert_eq!(tail[16 + 128..], [0, 0, 16, 0, 0, 0, 0, 1]);
}

#[test]
fn an_index_frame_says_what_is_wrong_with_it() {
    use super::super::sidx::{self, Found};
    let index = super::seed("lz4").image;
    let found = |image: &[u8], end: u64| {
        let bytes = Bytes::new(&image).unwrap();
        match sidx::read(&bytes, end, Format::Lz4, "test") {
            Ok(Found::Nothing) => "nothing".to_owned(),
            Ok(Found::Damaged(reason)) => reason.to_owned(),
            Ok(Found::Index(index)) => format!("{} frames", index.frames()),
            Err(error) => error.to_string(),
        }
    };
    let whole = index.len() as u64;
    assert!(found(&index, whole).ends_with("frames"));
    for end in [0, 15, whole - 1, whole + 1] {
        assert_eq!(found(&index, end), "nothing", "an end at {end}");
    }
    let with_length = |total: u32| {
        let mut image = index.clone();
        let at = image.len() - 8;
        image[at..at + 4].copy_from_slice(&total.to_le_bytes());
        found(&image, whole)
    };
    assert!(with_length(whole as u32 + 1).contains("more than the file's"));
    assert!(with_length(55).contains("less than its head's"));
    assert!(with_length(56).contains("does not agree"));
    // One frame and a damaged field each; the checksum is wrong where nothing else is.
    let total = sidx::le32(&index[index.len() - 8..]) as usize;
    let start = index.len() - total;
    for (at, says) in [
        (start, "does not agree"),
        (start + 4, "does not agree"),
        (start + 8, "does not agree"),
        (start + 24, "does not agree"),
        (start + 16, "checksum is wrong"),
        (start + 40, "checksum is wrong"),
        (index.len() - 16, "checksum is wrong"),
    ] {
        let mut image = index.clone();
        image[at] ^= 1;
        let message = found(&image, whole);
        assert!(message.contains(says), "byte {}: {message}", at - start);
    }
}

#[test]
fn a_descriptor_with_bits_that_must_be_zero_is_refused() {
    let seed = super::seed("foreign zstd, checked");
    for bit in 0..8 {
        let mut image = seed.image.clone();
        let at = image.len() - 5;
        image[at] ^= 1 << bit;
        let read = Index::read(&image.as_slice()).is_ok();
        // Bits 0 and 1 have no meaning; bit 7 means that there are checksums, which moves the
        // table.
        assert_eq!(read, bit < 2, "bit {bit}");
        if (2..7).contains(&bit) {
            let message = error(&image);
            assert!(message.contains("bits 2 to 6 must be 0"), "{message}");
        }
    }
}

#[test]
fn a_cloop_table_that_is_cut_off_says_how_many_bytes_are_needed() {
    let mut image = super::seed("cloop").image;
    image.truncate(144);
    let message = error(&image);
    assert!(message.contains("152"), "{message}");
}

#[test]
fn an_index_frame_may_name_frames_of_64_mebibytes_and_no_larger() {
    use super::super::sidx;
    use xxhash_rust::xxh3::xxh3_64;
    let index = super::seed("lz4").image;
    let with_frames_of = |frame_bytes: u32| {
        let mut image = index.clone();
        let total = sidx::le32(&image[image.len() - 8..]) as usize;
        let start = image.len() - total;
        image[start + 20..start + 24].copy_from_slice(&frame_bytes.to_le_bytes());
        let tail = image.len() - 16;
        let hash = xxh3_64(&image[start + 8..tail]);
        image[tail..tail + 8].copy_from_slice(&hash.to_le_bytes());
        error(&image)
    };
    let limit = "1 to 64 MiB";
    let message = with_frames_of(FRAME_BYTES_MAX);
    assert!(!message.contains(limit), "{message}");
    let message = with_frames_of(FRAME_BYTES_MAX + 1);
    assert!(message.contains(limit), "{message}");
}

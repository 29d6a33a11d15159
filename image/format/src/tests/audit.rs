//! Redundant tables: damage of any of their bytes is reported.

use super::super::audit::Audit;
use super::super::tree::Signature;
use super::super::write::Layout;
use super::*;
use crate::codec;

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

//! Images with a hash tree: changed frames are refused, whatever their checksums.

use super::super::tree::{Hash, Signature};
use super::super::write::{Layout, Packed};
use super::super::*;
use crate::codec;
use sidecore_random::SplitMix;

const FRAME_BYTES: usize = 4096;

/// One frame as it is put into an image.
struct Put {
    stored: Vec<u8>,
    packed: Packed,
}

fn deflated(format: Format, number: usize, raw: &[u8]) -> Put {
    let mut stored = Vec::new();
    let mut deflater =
        codec::make_tuned_deflater(format.codec(), None, codec::Tune::Speed).unwrap();
    deflater.deflate(raw, &mut stored).unwrap();
    let packed = Packed::of(&stored, raw).with_leaf(number as u64, &stored);
    Put { stored, packed }
}

/// An image of `raw`, whose frames `forge` may change: their leaves stay, and everything else is
/// made consistent, as by a forger without a key.
fn image(format: Format, raw: &[u8], forge: &mut dyn FnMut(usize, &mut Put)) -> (Vec<u8>, Hash) {
    let layout = Layout {
        frame_bytes: FRAME_BYTES as u32,
        raw_bytes: Some(raw.len() as u64),
        seekable: true,
        uneven: false,
        thin: false,
    };
    let mut writer = format.writer(&layout).unwrap();
    let signature = Signature {
        key: [7; 32],
        signature: [8; 64],
    };
    assert!(writer.seal(Box::new(move |_| vec![signature])));
    let mut image = writer.start();
    for (number, raw) in raw.chunks(FRAME_BYTES).enumerate() {
        let mut put = deflated(format, number, raw);
        forge(number, &mut put);
        image.extend_from_slice(&put.stored);
        writer.push(&put.packed).unwrap();
    }
    let ending = writer.finish(&mut image).unwrap();
    (image, ending.root.unwrap())
}

/// Contents with a frame of zeros, and a last frame that is short.
fn contents() -> Vec<u8> {
    let words = (0..40_000_u32).flat_map(|i| (i / 3).to_le_bytes());
    let mut raw: Vec<u8> = words.take(9 * FRAME_BYTES + 1000).collect();
    raw[3 * FRAME_BYTES..4 * FRAME_BYTES].fill(0);
    raw
}

fn trusted(image: &[u8], root: &Hash) -> Result<Index, FormatError> {
    let mut index = Index::read(&image)?;
    index.trust(&image, &mut |found, _| match found == root {
        true => Ok(()),
        false => Err("another root".to_owned()),
    })?;
    Ok(index)
}

/// Contents for a reader that trusts `root`; `None` if anything was refused.
fn read(image: &[u8], root: &Hash) -> Option<Vec<u8>> {
    let index = trusted(image, root).ok()?;
    let mut reader = FrameReader::new(false);
    let mut raw = Vec::new();
    for i in 0..index.frames() {
        raw.extend_from_slice(reader.read(&image, &index.frame(i)).ok()?);
    }
    Some(raw)
}

/// Number of forged frames: `SIDECORE_FORGED_FRAMES=1000000 cargo test --release -p sidecore-block
/// --lib tree`.
fn rounds() -> usize {
    let wanted = std::env::var("SIDECORE_FORGED_FRAMES").ok();
    wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(300)
}

const FORMATS: [Format; 2] = [Format::Zstd, Format::Lz4];

#[test]
fn the_right_image_reads_back() {
    let raw = contents();
    for format in FORMATS {
        let (image, root) = image(format, &raw, &mut |_, _| {});
        assert!(read(&image, &root).as_deref() == Some(&raw), "{format}");
        let index = Index::read(&image.as_slice()).unwrap();
        let tree = index.tree().unwrap();
        assert_eq!((tree.root, tree.signatures.len()), (root, 1));
        assert!(!index.is_trusted());
        // A reader that requires no verification reads it like any other image, and so do other
        // tools.
        assert_eq!(super::read_all(&image), raw, "{format}");
    }
    let zstd = image(Format::Zstd, &raw, &mut |_, _| {}).0;
    assert_eq!(zstd::decode_all(&zstd), raw);
}

/// The `zstd` library's own streaming decoder, as an independent reader.
mod zstd {
    pub(super) fn decode_all(mut image: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        while !image.is_empty() {
            let bytes = zstd_safe::find_frame_compressed_size(image).unwrap();
            let (frame, rest) = image.split_at(bytes);
            image = rest;
            if matches!(zstd_safe::get_frame_content_size(frame), Ok(Some(size)) if size > 0) {
                let mut out = vec![0; super::FRAME_BYTES];
                let count = zstd_safe::decompress(&mut out[..], frame).unwrap();
                all.extend_from_slice(&out[..count]);
            }
        }
        all
    }
}

#[test]
fn a_forged_frame_is_refused_though_its_checksums_are_right() {
    let raw = contents();
    let mut random = SplitMix::new(7);
    for format in FORMATS {
        let (_, root) = image(format, &raw, &mut |_, _| {});
        for round in 0..rounds() {
            let forged_at = round % 10;
            let (forged, claimed) = image(format, &raw, &mut |number, put| {
                if number != forged_at {
                    return;
                }
                let bytes = put.packed.raw_bytes as usize;
                let mut other = raw[number * FRAME_BYTES..][..bytes].to_vec();
                let at = random.below(bytes as u64) as usize;
                other[at] ^= 1 + random.below(255) as u8;
                let leaf = put.packed.leaf;
                *put = deflated(format, number, &other);
                put.packed.leaf = leaf;
            });
            assert_eq!(claimed, root, "the tree is the right one's");
            assert!(super::read_all(&forged) != raw, "its checksums are right");
            assert_eq!(read(&forged, &root), None, "{format}, frame {forged_at}");
        }
    }
}

#[test]
fn frames_cannot_change_places_or_become_zeros() {
    let raw = contents();
    for format in FORMATS {
        let (_, root) = image(format, &raw, &mut |_, _| {});
        let put_of = |number: usize, from: usize| {
            let mut put = deflated(format, from, &raw[from * FRAME_BYTES..][..FRAME_BYTES]);
            put.packed = put.packed.with_leaf(number as u64, &put.stored);
            put
        };
        // Frame 1 in the place of frame 2, with 2's leaf.
        let (swapped, _) = image(format, &raw, &mut |number, put| {
            if number == 2 {
                let leaf = put.packed.leaf;
                *put = put_of(1, 1);
                put.packed.leaf = leaf;
            }
        });
        assert_eq!(read(&swapped, &root), None, "{format}");
        // Declared zeros, which are never read from the file.
        let (emptied, _) = image(format, &raw, &mut |number, put| {
            put.packed.zero |= number == 5;
        });
        let error = trusted(&emptied, &root).unwrap_err().to_string();
        assert!(error.contains("frame 5 is declared all zeros"), "{error}");
        // Zeros without the declaration are read, and their bytes were not covered.
        let (filled, _) = image(format, &raw, &mut |number, put| {
            if number == 3 {
                let leaf = put.packed.leaf;
                *put = put_of(3, 4);
                put.packed.leaf = leaf;
            }
        });
        assert_eq!(read(&filled, &root), None, "{format}");
        // Declared zeros with other bytes: the declaration determines what is read.
        let (odd, _) = image(format, &raw, &mut |number, put| {
            if number == 3 {
                let leaf = put.packed.leaf;
                *put = put_of(3, 4);
                (put.packed.leaf, put.packed.zero) = (leaf, true);
            }
        });
        assert!(read(&odd, &root).as_deref() == Some(&raw), "{format}");
    }
}

#[test]
fn the_tree_of_another_image_is_refused() {
    let raw = contents();
    for format in FORMATS {
        let (whole, root) = image(format, &raw, &mut |_, _| {});
        let (other, other_root) = image(format, &raw[..5 * FRAME_BYTES], &mut |_, _| {});
        assert_ne!(root, other_root);
        assert!(trusted(&whole, &other_root).is_err());
        assert!(trusted(&other, &root).is_err());
        // Fewer frames with the same beginning: the root covers their number.
        let short = &raw[..9 * FRAME_BYTES];
        let (short, _) = image(format, short, &mut |_, _| {});
        assert!(trusted(&short, &root).is_err());
    }
    let (plain, _) = image(Format::Zstd, &raw, &mut |_, _| {});
    let seed = &super::seeds()[0];
    let error = trusted(&seed.image, &[0; 32]).unwrap_err().to_string();
    assert!(
        error.contains("it has no hash tree") && error.contains("--tree"),
        "{error}"
    );
    let mut cut = plain;
    cut.truncate(100);
    assert!(trusted(&cut, &[0; 32]).is_err());
}

/// Whatever is changed in an image, a reader that trusts the root gets the right bytes or an error.
#[test]
fn no_mutation_gives_wrong_bytes() {
    let raw = contents();
    for format in FORMATS {
        let (image, root) = image(format, &raw, &mut |_, _| {});
        let mut random = SplitMix::new(11);
        let mut right = 0;
        for _ in 0..2000 {
            let mut mutated = image.clone();
            for _ in 0..1 + random.below(3) {
                let at = random.below(mutated.len() as u64) as usize;
                mutated[at] = random.below(256) as u8;
            }
            if let Some(found) = read(&mutated, &root) {
                assert!(found == raw, "{format}");
                right += 1;
            }
        }
        // Parts that do not matter: the seek table, names of keys.
        assert!(right < 1500, "{format}: {right}");
    }
}

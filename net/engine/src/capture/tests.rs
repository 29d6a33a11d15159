//! Rings of records, and the file that is made of them, by the rules of its format.

use super::file::{CaptureFile, CaptureRing};
use super::*;
use crate::sock::mailbox::Attachment;
use crate::sock::taps::Captures;
use sidecore_attach::Segment;
use sidecore_sys::local_socket::Peer;
use std::fs::File;
use std::sync::Arc;

/// A tap, and the reader of its ring.
fn both(filter: &str, frame_bytes_max: u64) -> (Captures, Reader) {
    let name = "sidecore-capture-test";
    let map = SharedMap::create(name, SEGMENT_BYTES, Sharing::ReadWrite).unwrap();
    let file = map.file().try_clone_to_owned().unwrap();
    let attachment = Arc::new(Attachment {
        map: Segment::uncharged(map),
        chunks: 0,
        peer: Peer {
            pid: 1,
            uid: 0,
            gid: 0,
        },
        wake: None,
        gone: AtomicBool::new(false),
    });
    let mut captures = Captures::default();
    captures.add(attachment);
    let map = SharedMap::open(file, SEGMENT_BYTES, Sharing::ReadWrite).unwrap();
    map.slice().write_at(TEXT, filter.as_bytes());
    let sizes = filter.len().to_u64() << 32 | frame_bytes_max;
    word(map.slice(), SIZES).store(sizes, Ordering::Relaxed);
    word(map.slice(), STARTED).store(1, Ordering::Release);
    let reader = Reader {
        path: "net.sock".into(),
        socket: local_socket::pair().unwrap().0,
        map,
        read: 0,
        frame: Vec::new(),
    };
    (captures, reader)
}

fn file() -> PcapNg<Vec<u8>> {
    PcapNg {
        file: Vec::new(),
        epoch_ns: 0,
        summary: CaptureSummary::default(),
    }
}

#[test]
fn frames_come_back_through_many_turns_of_the_ring() {
    let (mut captures, mut reader) = both("", 100_000);
    let mut file = file();
    let mut wanted = CaptureSummary::default();
    for round in 0..3_000usize {
        let frame = vec![round.to_le_bytes()[0]; 60 + round * 7919 % 65_000];
        captures.received(&frame);
        let before = file.file.len();
        reader.drain(0, &mut file, u64::MAX).unwrap();
        wanted.frames += 1;
        wanted.bytes += frame.len().to_u64();
        assert_eq!(file.summary, wanted);
        // The block: 28 bytes before the frame.
        let at = before + 28;
        assert_eq!(file.file[at..at + frame.len()], frame);
        file.file.clear();
    }
    assert!(reader.read > 4 * RING_BYTES.to_u64());
}

/// The kinds and bodies of all blocks, by the format's own rules.
fn blocks(file: &[u8]) -> Vec<(u32, &[u8])> {
    let mut all = Vec::new();
    let mut rest = file;
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(*rest[at..].first_chunk().unwrap());
        let whole = number(4).to_usize();
        assert!(whole.is_multiple_of(4) && whole >= 12 && whole <= rest.len());
        assert_eq!(
            number(whole - 4),
            number(4),
            "the length stands at both ends"
        );
        all.push((number(0), &rest[8..whole - 4]));
        rest = &rest[whole..];
    }
    all
}

/// Options by their codes, up to the end mark.
fn options(mut rest: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    loop {
        let half = |at: usize| u16::from_le_bytes(*rest[at..].first_chunk().unwrap());
        let (code, bytes) = (half(0), usize::from(half(2)));
        if code == 0 {
            assert_eq!(rest, [0; 4], "nothing follows the end");
            return all;
        }
        all.push((code, &rest[4..4 + bytes]));
        rest = &rest[4 + bytes.next_multiple_of(4)..];
    }
}

#[test]
fn the_file_is_what_the_format_says() {
    let (mut captures, mut reader) = both("udp or arp", 100);
    let mut written = file();
    written.begin(std::slice::from_ref(&reader), 100).unwrap();
    let mut frame = [0; 1501];
    for (ethertype, length) in [([8, 6], 60), ([8, 0], 1501), ([8, 6], 1501)] {
        frame[12..14].copy_from_slice(&ethertype);
        captures.received(&frame[..length]);
    }
    let (before, epoch_ns) = (clock::now_ns(), 7_000_000_000_000_000_000);
    written.epoch_ns = epoch_ns;
    reader.drain(0, &mut written, u64::MAX).unwrap();
    written.end(std::slice::from_ref(&reader)).unwrap();
    let all = blocks(&written.file);
    let kinds: Vec<u32> = all.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [SECTION, INTERFACE, PACKET, PACKET, STATISTICS]);
    // Little-endian, version 1.0, no length of the section.
    let magic = [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0];
    assert_eq!(all[0].1[..8], magic);
    assert_eq!(all[0].1[8..16], [0xff; 8]);
    assert_eq!(options(&all[0].1[16..])[0].0, 4);
    // Ethernet, and the bytes kept; times are nanoseconds.
    assert_eq!(all[1].1[..8], [1, 0, 0, 0, 100, 0, 0, 0]);
    assert_eq!(options(&all[1].1[8..]), [(2, &b"net.sock"[..]), (9, &[9])]);
    for ((_, body), bytes) in all[2..4].iter().zip([60, 1501]) {
        let word = |at: usize| u32::from_le_bytes(*body[at..].first_chunk().unwrap());
        let kept = bytes.min(100);
        assert_eq!([word(0), word(12), word(16)], [0, kept, bytes]);
        let time_ns = u64::from(word(4)) << 32 | u64::from(word(8));
        assert!(time_ns > epoch_ns && time_ns <= epoch_ns + before);
        // An inbound frame.
        let end = 20 + kept.to_usize().next_multiple_of(4);
        assert_eq!(options(&body[end..]), [(2, &[1, 0, 0, 0][..])]);
    }
    assert_eq!(options(&all[4].1[12..]), [(5, &[0; 8][..])]);
}

#[test]
fn a_file_on_a_full_disk_ends_with_a_whole_block() {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let full = File::from(rustix::fs::memfd_create("full", flags).unwrap());
    full.set_len(9_000).unwrap();
    rustix::fs::fcntl_add_seals(&full, rustix::fs::SealFlags::GROW).unwrap();
    let (mut captures, mut reader) = both("", 1 << 20);
    let mut written = PcapNg {
        file: CaptureFile::new(full.try_clone().unwrap()),
        epoch_ns: 0,
        summary: CaptureSummary::default(),
    };
    written
        .begin(std::slice::from_ref(&reader), 1 << 18)
        .unwrap();
    for _ in 0..20 {
        captures.received(&[7; 1000]);
    }
    reader.drain(0, &mut written, u64::MAX).unwrap();
    assert!(written.file.flush().is_err());
    let mut bytes = vec![0; full.metadata().unwrap().len().to_usize()];
    std::os::unix::fs::FileExt::read_exact_at(&full, &mut bytes, 0).unwrap();
    let packets = blocks(&bytes).iter().filter(|it| it.0 == PACKET).count();
    assert!(packets > 0 && packets < 20, "{packets}");
}

#[test]
fn a_full_file_is_followed_by_one_that_stands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let files = CaptureRing {
        path: folder.path().join("out.pcapng"),
        file_bytes_max: 5_000,
        files_max: Some(2),
    };
    let (mut captures, mut reader) = both("", 1 << 18);
    let mut written = PcapNg {
        file: CaptureFile::first(files.clone()).unwrap(),
        epoch_ns: 0,
        summary: CaptureSummary::default(),
    };
    written
        .begin(std::slice::from_ref(&reader), 1 << 18)
        .unwrap();
    for _ in 0..20 {
        captures.received(&[7; 1000]);
    }
    // Larger than a file.
    captures.received(&[7; 9000]);
    reader.drain(0, &mut written, u64::MAX).unwrap();
    written.end(std::slice::from_ref(&reader)).unwrap();
    let there = (0..20).filter(|number| files.file(*number).exists());
    assert_eq!(there.collect::<Vec<u64>>(), [5, 6]);
    let name = files.file(5).file_name().unwrap().to_owned();
    assert_eq!(name, "out.5.pcapng");
    for (number, frames, end) in [(5, 4, PACKET), (6, 1, STATISTICS)] {
        let bytes = std::fs::read(files.file(number)).unwrap();
        assert!(number == 6 || bytes.len() <= 5_000);
        let kinds = blocks(&bytes).into_iter().map(|(kind, _)| kind);
        let kinds: Vec<u32> = kinds.collect();
        assert_eq!(kinds[..2], [SECTION, INTERFACE]);
        assert_eq!(kinds.last(), Some(&end));
        let packets = kinds.iter().filter(|kind| **kind == PACKET);
        assert_eq!(packets.count(), frames);
    }
    assert_eq!(written.summary.frames, 21);
}

#[test]
fn what_a_slow_reader_loses_is_counted() {
    let (mut captures, mut reader) = both("", 1 << 20);
    let frame = [7; 1514];
    for _ in 0..10_000 {
        captures.received(&frame);
    }
    let mut file = file();
    reader.drain(0, &mut file, u64::MAX).unwrap();
    assert_eq!(file.summary.frames + reader.dropped(), 10_000);
    assert_eq!(file.summary.frames.to_usize(), RING_BYTES / 1568);
    captures.received(&frame);
    reader.drain(0, &mut file, u64::MAX).unwrap();
    assert_eq!(file.summary.frames.to_usize(), RING_BYTES / 1568 + 1);
}

#[test]
fn the_filter_and_the_length_are_the_readers() {
    let (mut captures, mut reader) = both("arp", 20);
    let mut frame = [0; 60];
    captures.received(&frame);
    frame[12..14].copy_from_slice(&[8, 6]);
    captures.received(&frame);
    let mut file = file();
    reader.drain(0, &mut file, u64::MAX).unwrap();
    let (frames, bytes, dropped) = (1, 20, 0);
    let wanted = CaptureSummary {
        frames,
        bytes,
        dropped,
    };
    assert_eq!(file.summary, wanted);
}

#[test]
fn a_reader_that_breaks_the_rules_is_cut_off() {
    for (filter, read) in [("no filter", 0), ("", u64::MAX), ("", 1 << 40)] {
        let (mut captures, reader) = both(filter, 2000);
        word(reader.map.slice(), READ).store(read, Ordering::Release);
        for _ in 0..10_000 {
            captures.received(&[0; 1514]);
        }
        captures.forget_gone();
        assert!(captures.is_empty(), "{filter:?} {read}");
    }
    let (mut captures, reader) = both("", 2000);
    word(reader.map.slice(), SIZES).store(u64::MAX, Ordering::Relaxed);
    captures.received(&[0; 60]);
    captures.forget_gone();
    assert!(captures.is_empty());
}

#[test]
fn records_of_an_engine_that_is_none_are_refused() {
    let (mut captures, mut reader) = both("", 2000);
    captures.received(&[0; 60]);
    for whole in [0u32, 33, u32::MAX, 16 << 20] {
        reader.map.slice().write_at(RING, &whole.to_le_bytes());
        let refused = reader.drain(0, &mut file(), u64::MAX);
        assert!(matches!(refused, Err(CaptureError::Sock(_))), "{whole}");
    }
}

//! The bytes that both sides write, as docs/daemon.md lays them out: another release, and the C
//! client, read them by that page.

use super::activity::{ActivityPage, ActivityView};
use super::introduction::{Attached, KernelName, Question};
use super::layout::{self, CLIENTS_MAX, ENGINES_MAX, MAGIC, Status, VERSION};
use super::load::UserLoad;
use super::ring::{JOBS_MAX, JobHeads, JobPacket};
use super::slot::{Answer, Packet, RANGES_MAX, WORDS};
use crate::served::KernelHash;
use sidecore_sys::{SharedMap, Sharing};
use std::os::fd::OwnedFd;

/// A segment of two engines with an arena of one page.
fn segment() -> SharedMap {
    let bytes = layout::segment_bytes(2, 4096).expect("a size");
    SharedMap::create("test", bytes, Sharing::ReadWrite).expect("a segment")
}

fn text_at(map: &SharedMap, offset: usize, bytes: usize) -> Vec<u8> {
    let mut text = vec![0; bytes];
    map.slice().read_at(offset, &mut text);
    text
}

#[test]
fn a_segment_is_laid_out_as_the_page_says() {
    // 128 bytes of sleepers, two rings of 8 KiB, 1,024 slots of 128 bytes; in whole pages.
    const JOBS: usize = 151_552;
    assert_eq!(layout::arena_offset(0), 4096 + JOBS);
    assert_eq!(layout::arena_offset(1), 8192 + JOBS);
    // Ten engines fill 3840 bytes of a page, eleven 4224.
    assert_eq!(layout::arena_offset(10), 8192 + JOBS);
    assert_eq!(layout::arena_offset(11), 12288 + JOBS);
    assert_eq!(layout::segment_bytes(1, 4096), Some(12288 + JOBS));
    assert_eq!(layout::segment_bytes(1, 4097), Some(16384 + JOBS));
    assert_eq!(layout::segment_bytes(1, u64::MAX), None);
    assert_eq!(layout::segment_bytes(1, u64::MAX - 8192), None);
    let map = segment();
    for engine in 0..2 {
        let pair = layout::pair(map.slice(), engine).unwrap();
        let address = |place: usize| map.slice().address() + 4096 + 384 * engine + place;
        assert_eq!(std::ptr::from_ref(pair.call).addr(), address(0));
        assert_eq!(std::ptr::from_ref(pair.sleep).addr(), address(256));
    }
    let beyond = (map.slice().len() - 4096) / 384;
    assert!(layout::pair(map.slice(), beyond).is_none());
    let jobs = layout::jobs(map.slice(), 2).unwrap();
    let address = |place: usize| map.slice().address() + 8192 + place;
    assert_eq!(std::ptr::from_ref(jobs.sleep).addr(), address(0));
    assert_eq!(std::ptr::from_ref(jobs.submitted).addr(), address(128));
    assert_eq!(std::ptr::from_ref(jobs.completed).addr(), address(8320));
    let slot = |place| jobs.slot(place).map(|slot| std::ptr::from_ref(slot).addr());
    assert_eq!(slot(0), Some(address(16_512)));
    assert_eq!(slot(JOBS_MAX - 1), Some(address(16_512 + 1023 * 128)));
    assert_eq!((slot(JOBS_MAX), slot(usize::MAX)), (None, None));
    assert!(layout::jobs(map.slice(), 40).is_none());
}

#[test]
fn a_job_lies_in_its_slot_as_the_page_says() {
    let map = segment();
    let jobs = layout::jobs(map.slice(), 2).unwrap();
    let word = |offset: usize| map.slice().load_u64(8192 + offset);
    let slot = jobs.slot(3).unwrap();
    let packet = JobPacket {
        kernel: 0x1234,
        words: [11, 0, 33, 0, 0, 0],
        inputs: 2,
        outputs: 1,
        ranges: [(100, 10), (200, 20), (300, 30), (400, 40)],
    };
    slot.ask(&packet);
    jobs.submitted.submit(7, 3);
    assert_eq!(word(128 + 8 * 7), 8 << 32 | 3);
    let at = 16_512 + 3 * 128;
    assert_eq!(word(at), 1);
    assert_eq!(word(at + 8), 0x1234 | 2 << 16 | 1 << 24 | 3 << 32);
    assert_eq!([word(at + 16), word(at + 24), word(at + 32)], [11, 0, 33]);
    assert_eq!([word(at + 64), word(at + 72)], [100, 10]);
    assert_eq!([word(at + 104), word(at + 112)], [30, 0]);
    assert!(slot.begin());
    assert_eq!(word(at), 2);
    slot.answer(&[0, 5, 0, 0, 0, 0], "no such thing");
    assert_eq!(word(at + 8), 13 | 2 << 32);
    assert_eq!(text_at(&map, 8192 + at + 64, 13), b"no such thing");
    let heads = JobHeads::default();
    heads.complete(jobs.completed, 3, Status::Failed as u32);
    assert_eq!(word(8320), 1 << 32 | 3 << 16 | 3);
    assert!(!slot.take_back());
    assert_eq!(word(at), 3);
}

#[test]
fn a_request_lies_in_its_slot_as_the_page_says() {
    let map = segment();
    let call = layout::pair(map.slice(), 1).unwrap().call;
    let word = |offset: usize| map.slice().load_u64(4096 + 384 + offset);
    let packet = Packet {
        kernel: 0x1234,
        words: [11, 0, 33, 0, 0, 0],
        inputs: 2,
        outputs: 1,
        ranges: [(100, 10), (200, 20), (300, 30), (400, 40)],
    };
    assert!(call.rung(0).is_none());
    call.ring(7, &packet);
    assert_eq!(word(0), 7 | 0x1234 << 32 | 2 << 48 | 1 << 52 | 3 << 56);
    assert_eq!([word(16), word(24), word(32), word(40)], [11, 0, 33, 0]);
    assert_eq!([word(64), word(72), word(80), word(88)], [100, 10, 200, 20]);
    // A fourth range is not named, and so not written.
    assert_eq!([word(96), word(104), word(112), word(120)], [300, 30, 0, 0]);
    let bell = call.rung(6).expect("another number than the one seen last");
    assert!(call.rung(7).is_none());
    let named = Packet {
        ranges: [(100, 10), (200, 20), (300, 30), (0, 0)],
        ..packet
    };
    assert_eq!((bell.sequence(), call.packet(bell)), (7, named));
    // Words that do not count are 0, whatever the request before left there.
    call.ring(8, &Packet::default());
    let bell = call.rung(7).unwrap();
    assert_eq!(call.packet(bell), Packet::default());
    assert_eq!(word(0), 8);
}

#[test]
fn counts_that_make_no_sense_come_out_as_they_are_and_reach_no_memory() {
    let map = segment();
    let call = layout::pair(map.slice(), 0).unwrap().call;
    let packet = Packet {
        kernel: 0xffff,
        words: [1; WORDS],
        inputs: 15,
        outputs: 15,
        ranges: [(5, 6); RANGES_MAX],
    };
    call.ring(1, &packet);
    // More words than there are.
    let all_ones = u64::from(u32::MAX) << 32 | 2;
    map.slice().write_at(4096, &all_ones.to_le_bytes());
    assert_eq!(call.packet(call.rung(1).unwrap()), packet);
}

#[test]
fn an_answer_lies_in_its_slot_as_the_page_says() {
    let map = segment();
    let call = layout::pair(map.slice(), 0).unwrap().call;
    let word = |offset: usize| map.slice().load_u64(4096 + offset);
    let answer = Answer {
        status: Status::Failed as u32,
        words: [0, 5, 0, 0, 0, 6],
    };
    assert!(!call.answered(3));
    call.publish(3, &answer, "no such thing");
    assert_eq!(word(8), 3 | 3 << 32 | 6 << 48 | 13 << 56);
    assert_eq!([word(24), word(56)], [5, 6]);
    assert_eq!(text_at(&map, 4096 + 128, 14), b"no such thing\0");
    assert!(call.answered(3) && !call.answered(2) && !call.answered(4));
    assert_eq!(
        (call.answer(), call.text().as_str()),
        (answer, "no such thing")
    );
    // The next one is shorter in both ways.
    let short = Answer {
        status: Status::Done as u32,
        words: [9, 0, 0, 0, 0, 0],
    };
    call.publish(4, &short, "");
    assert_eq!((call.answer(), call.text().as_str()), (short, ""));
}

#[test]
fn a_long_text_is_cut_at_the_end_of_a_character() {
    let map = segment();
    let call = layout::pair(map.slice(), 0).unwrap().call;
    for (text, wanted) in [
        ("x".repeat(64), "x".repeat(64)),
        ("x".repeat(65), "x".repeat(64)),
        ("x".repeat(63) + "ü", "x".repeat(63)),
        ("x".repeat(62) + "ü", "x".repeat(62) + "ü"),
        ("x".repeat(62) + "üü", "x".repeat(62) + "ü"),
    ] {
        call.publish(1, &Answer::default(), &text);
        assert_eq!(call.text(), wanted, "{text}");
        assert_eq!(call.answer(), Answer::default());
    }
}

#[test]
fn a_status_has_its_number() {
    let known = [
        (0, Status::Done),
        (1, Status::UnknownKernel),
        (2, Status::BadRange),
        (3, Status::Failed),
        (4, Status::TakenBack),
    ];
    for (number, status) in known {
        assert_eq!(Status::from_number(number), Some(status));
    }
    assert_eq!(Status::from_number(5), None);
}

#[test]
fn an_attachments_terms_are_as_the_page_says() {
    let question = Question::Attach { arena_bytes: 513 }.encode();
    assert_eq!(question[..8], MAGIC.to_le_bytes());
    assert_eq!(question[8..16], [1, 0, 0, 0, 4, 0, 0, 0]);
    assert_eq!(
        question[16..],
        [1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
    let attached = Attached {
        client: 1,
        engines: 2,
        segment_bytes: 3,
        arena_bytes: 4,
        activity_bytes: 5,
        kernels: vec![KernelName {
            name: "é".repeat(30),
            number: 6,
            version: 7,
            hash: KernelHash::from_bytes([9; 32]),
        }],
    };
    let terms = attached.encode();
    // Offsets are those of the page, which counts the head of 16 bytes, too.
    let word = |offset: usize| u32::from_le_bytes(terms[offset - 16..][..4].try_into().unwrap());
    assert_eq!((word(16), word(20)), (1, 2));
    assert_eq!((word(24), word(32), word(40), word(48)), (3, 4, 5, 1));
    assert_eq!((word(64 + 40), word(64 + 44)), (6, 7));
    assert_eq!(terms.len(), 64 - 16 + 48 + 32);
    assert_eq!(terms[64 - 16 + 48..], [9; 32]);
    // A name is cut at 40 bytes.
    let read = Attached::decode(&terms).unwrap();
    assert_eq!(read.kernels[0].name, "é".repeat(20));
    // Fewer or more kernels than were said, or half of one.
    assert_eq!(Attached::decode(&terms[..48]), None);
    assert_eq!(Attached::decode(&terms[..127]), None);
    assert_eq!(Attached::decode(&[&terms[..], &[0; 80]].concat()), None);
    assert_eq!(Attached::decode(&[&terms[..], &[0]].concat()), None);
}

fn opened(page: &ActivityPage, engines: usize) -> Option<ActivityView> {
    let file: OwnedFd = page.file().try_clone_to_owned().expect("a descriptor");
    ActivityView::open(file, page.bytes(), engines).expect("a page")
}

#[test]
fn the_activity_page_says_who_is_served_and_who_was() {
    let page = ActivityPage::new(&[4, 5, 6]).unwrap();
    // Another number of engines than the daemon said: of another layout.
    assert!(opened(&page, 2).is_none());
    let view = opened(&page, 3).unwrap();
    assert_eq!((view.heartbeat(), view.is_ending()), (1, false));
    assert_eq!((view.serving(1), page.serving(1)), (None, None));
    page.serve(1, 0, 7);
    page.serve(2, 119, 0);
    assert_eq!((view.serving(1), page.serving(1)), (Some(0), Some(0)));
    assert_eq!((view.serving(2), view.serving(0)), (Some(119), None));
    // The same request as long as nothing changes; another one of the same client differs.
    let doing = view.doing(1);
    assert_eq!((view.doing(1), doing.client()), (doing, Some(0)));
    page.rest(1, 7);
    assert_ne!(view.doing(1), doing);
    page.serve(1, 0, 8);
    assert_ne!(view.doing(1), doing);
    page.rest(1, 8);
    assert_eq!((view.serving(1), page.serving(1)), (None, None));
    // Active for the heartbeat in which it was served, and the next.
    let active = |client: usize| view.is_active(client, view.heartbeat());
    assert!(active(0) && active(119) && !active(1));
    page.beat();
    assert_eq!(view.heartbeat(), 2);
    assert!(active(0));
    page.serve(0, 119, u32::MAX);
    page.beat();
    assert!(!active(0) && active(119));
    page.forget(119);
    assert!(!active(119));
    page.end();
    assert!(view.is_ending());
}

#[test]
fn the_activity_page_is_laid_out_as_the_page_says() {
    use layout::activity;
    let page = ActivityPage::new(&[4, 5, 6]).unwrap();
    let view = SharedMap::open(
        page.file().try_clone_to_owned().unwrap(),
        page.bytes(),
        Sharing::ReadOnly,
    )
    .unwrap();
    let word = |offset: usize| view.slice().load_u64(offset);
    assert_eq!(word(0), MAGIC);
    assert_eq!(word(8), u64::from(VERSION) | 3 << 32);
    page.beat();
    page.serve(2, 4, 9);
    page.end();
    assert_eq!((word(16), word(64)), (1, 2));
    assert_eq!(word(128 + 128 * 2), 5 | 9 << 32);
    assert_eq!(word(128 + 128 * 2 + 8), 6);
    assert_eq!(word(128 + 128 * 3 + 8 * 4), 2);
    // Room for the maximum number of clients, in whole pages.
    for engines in 1..=ENGINES_MAX {
        let end = 128 + 128 * engines + 8 * CLIENTS_MAX;
        assert_eq!(activity::bytes(engines), end.next_multiple_of(4096));
    }
}

#[test]
fn a_request_without_room_leaves_no_count_behind() {
    let load = UserLoad::new(1);
    assert!(load.has_room());
    let one = load.begin().unwrap();
    for _ in 0..3 {
        assert!(load.begin().is_none() && !load.has_room());
    }
    drop(one);
    assert!(load.has_room() && load.begin().is_some() && load.has_room());
}

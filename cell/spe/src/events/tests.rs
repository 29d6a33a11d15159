//! Registrations and waits, without contexts: files alone.

use super::*;
use crate::source::Sources;

fn number(result: Result<(), i32>) -> i32 {
    result.expect_err("it is refused")
}

#[test]
fn a_source_is_readable_while_its_condition_holds() {
    let handler = Handler::new().unwrap();
    let mut sources = Sources::default();
    assert!(sources.is_empty());
    // Shown before anything watches: nothing happens.
    sources.show(Source::Stopped, true);
    let stopped = sources.file(Source::Stopped).unwrap();
    assert_eq!(sources.file(Source::Stopped).unwrap(), stopped);
    assert!(sources.has(Source::Stopped) && !sources.has(Source::TagGroup));
    handler.add(stopped, Source::Stopped, 0x1000, 77).unwrap();
    assert!(handler.wait(8, 0).unwrap().is_empty());
    sources.show(Source::Stopped, true);
    sources.show(Source::Stopped, true);
    for _ in 0..2 {
        let events = handler.wait(8, -1).unwrap();
        assert_eq!(events.len(), 1);
        let Event { bit, context, data } = events[0];
        assert_eq!((bit, context, data), (Source::Stopped.bit(), 0x1000, 77));
    }
    sources.show(Source::Stopped, false);
    assert!(handler.wait(8, 0).unwrap().is_empty());
}

#[test]
fn a_file_is_registered_once_and_removed_once() {
    let handler = Handler::new().unwrap();
    let mut sources = Sources::default();
    let file = sources.file(Source::InMailbox).unwrap();
    handler.add(file, Source::InMailbox, 1, 2).unwrap();
    assert_eq!(
        number(handler.add(file, Source::InMailbox, 1, 2)),
        libc::EEXIST
    );
    handler.remove(file).unwrap();
    assert_eq!(number(handler.remove(file)), libc::ENOENT);
    assert_eq!(
        number(handler.add(-1, Source::InMailbox, 1, 2)),
        libc::EBADF
    );
    sources.show(Source::InMailbox, true);
    assert!(handler.wait(8, 0).unwrap().is_empty());
}

#[test]
fn a_wait_gives_no_more_than_there_is_room_for() {
    let handler = Handler::new().unwrap();
    let mut sources = Sources::default();
    for source in Source::ALL {
        let file = sources.file(source).unwrap();
        handler.add(file, source, 5, source.bit().into()).unwrap();
        sources.show(source, true);
    }
    assert_eq!(handler.wait(2, 0).unwrap().len(), 2);
    let mut bits: Vec<u32> = handler
        .wait(1000, 0)
        .unwrap()
        .iter()
        .map(|it| it.bit)
        .collect();
    bits.sort();
    assert_eq!(bits, [1, 2, 4, 8]);
    // Files that are gone are no longer in the set.
    drop(sources);
    assert!(handler.wait(8, 0).unwrap().is_empty());
}

#[test]
fn a_wait_ends_with_its_time() {
    let handler = Handler::new().unwrap();
    assert!(handler.wait(1, 1).unwrap().is_empty());
}

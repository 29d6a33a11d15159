//! The core against the protocol document: exact bytes, rules, and random dialogues.

use crate::nbd::handshake::{
    Contexts, Ending, Export, Handshake, OPTION_DATA_BYTES_MAX, OPTIONS_MAX, REQUEST_LEN_MAX, Step,
    Terms,
};
use crate::nbd::session::{Command, Next, Session};
use crate::nbd::wire::{
    Headers, Request, command, command_flag, errno, option, reply, transmission_flag,
};

const CHUNKS: Terms = Terms {
    headers: Headers::Structured,
    contexts: Contexts {
        allocation: true,
        bitmap: false,
    },
};
const PLAIN: Terms = Terms {
    headers: Headers::Simple,
    contexts: Contexts {
        allocation: false,
        bitmap: false,
    },
};

fn export() -> Export {
    Export::new("disk", "text", 1 << 20, 65536)
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

pub(super) fn name_data(name: &str, rest: &[u8]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(rest);
    data
}

/// A handshake past the client's flags.
pub(super) fn begun(flags: u32) -> Handshake {
    let mut handshake = Handshake::new();
    let step = handshake.step(&export(), &flags.to_be_bytes(), &mut Vec::new());
    assert_eq!(step, Step::Used(4));
    handshake
}

/// Sends one option; the step, and the (kind, data) of every reply.
pub(super) fn ask(
    handshake: &mut Handshake,
    option: u32,
    data: &[u8],
) -> (Step, Vec<(u32, Vec<u8>)>) {
    let bytes = option_bytes(option, data);
    let mut out = Vec::new();
    let step = handshake.step(&export(), &bytes, &mut out);
    let mut replies = Vec::new();
    let mut rest = &out[..];
    while !rest.is_empty() {
        assert_eq!(rest[..8], [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9]);
        assert_eq!(rest[8..12], option.to_be_bytes());
        let kind = u32::from_be_bytes(rest[12..16].try_into().unwrap());
        let len = u32::from_be_bytes(rest[16..20].try_into().unwrap()) as usize;
        replies.push((kind, rest[20..20 + len].to_vec()));
        rest = &rest[20 + len..];
    }
    (step, replies)
}

#[test]
fn the_greeting_is_fixed_newstyle_without_zeroes() {
    let mut out = Vec::new();
    Handshake::new().greet(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn export_name_answers_without_a_reply_header() {
    for (flags, zeroes) in [(3, 0), (1, 124)] {
        let mut handshake = begun(flags);
        let bytes = option_bytes(option::EXPORT_NAME, b"disk");
        let mut out = Vec::new();
        let step = handshake.step(&export(), &bytes, &mut out);
        assert_eq!(step, Step::Begin(bytes.len(), PLAIN));
        // Size, then HAS_FLAGS, READ_ONLY, CAN_MULTI_CONN and SEND_CACHE, but no SEND_DF.
        let mut expected = vec![0, 0, 0, 0, 0, 0x10, 0, 0, 0x05, 0x03];
        expected.extend(std::iter::repeat_n(0, zeroes));
        assert_eq!(out, expected);
    }
    let bytes = option_bytes(option::EXPORT_NAME, b"other");
    let step = begun(3).step(&export(), &bytes, &mut Vec::new());
    assert_eq!(step, Step::Close(Ending::NoSuchExport));
}

#[test]
fn unknown_client_flags_end_the_session() {
    let step = Handshake::new().step(&export(), &[0, 0, 0, 7], &mut Vec::new());
    assert!(matches!(step, Step::Close(Ending::Violation(_))));
}

#[test]
fn go_describes_the_export_and_begins() {
    let mut handshake = begun(3);
    let (_, replies) = ask(&mut handshake, option::STRUCTURED_REPLY, &[]);
    assert_eq!(replies, [(reply::ACK, vec![])]);
    let data = name_data("disk", &[0, 4, 0, 0, 0, 1, 0, 2, 0, 3]);
    let (step, replies) = ask(&mut handshake, option::GO, &data);
    let terms = Terms {
        headers: Headers::Structured,
        contexts: Contexts::default(),
    };
    assert_eq!(step, Step::Begin(16 + data.len(), terms));
    let flags = transmission_flag::SEND_DF | 0x0503;
    let [high, low] = flags.to_be_bytes();
    assert_eq!(
        replies,
        [
            (
                reply::INFO,
                vec![0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, high, low]
            ),
            (reply::INFO, b"\x00\x01disk".to_vec()),
            (reply::INFO, b"\x00\x02text".to_vec()),
            (reply::INFO, vec![0, 3, 0, 0, 0, 1, 0, 1, 0, 0, 2, 0, 0, 0]),
            (reply::ACK, vec![]),
        ]
    );
}

#[test]
fn info_describes_and_stays_in_the_handshake() {
    let mut handshake = begun(3);
    let data = name_data("", &[0, 0]);
    let (step, replies) = ask(&mut handshake, option::INFO, &data);
    assert_eq!(step, Step::Used(16 + data.len()));
    assert_eq!(replies.last(), Some(&(reply::ACK, vec![])));
    let (_, replies) = ask(&mut handshake, option::INFO, &name_data("other", &[0, 0]));
    assert_eq!(replies[0].0, reply::ERR_UNKNOWN);
    for bad in [
        &b""[..],
        b"\x00\x00\x00\x09disk",
        &name_data("disk", &[0, 2, 0, 0]),
    ] {
        let (step, replies) = ask(&mut handshake, option::GO, bad);
        assert_eq!(
            (step, replies[0].0),
            (Step::Used(16 + bad.len()), reply::ERR_INVALID)
        );
    }
}

#[test]
fn other_options_are_answered_as_the_document_asks() {
    let mut handshake = begun(3);
    let (_, replies) = ask(&mut handshake, option::LIST, &[]);
    assert_eq!(replies[0], (reply::SERVER, name_data("disk", b"text")));
    assert_eq!(replies[1].0, reply::ACK);
    assert_eq!(
        ask(&mut handshake, option::LIST, b"x").1[0].0,
        reply::ERR_INVALID
    );
    assert_eq!(
        ask(&mut handshake, option::STARTTLS, &[]).1[0].0,
        reply::ERR_UNSUP
    );
    assert_eq!(ask(&mut handshake, 12, &[]).1[0].0, reply::ERR_UNSUP);
    assert_eq!(
        ask(&mut handshake, option::STRUCTURED_REPLY, b"x").1[0].0,
        reply::ERR_INVALID
    );
    let (step, replies) = ask(&mut handshake, option::ABORT, &[]);
    assert_eq!(
        (step, replies),
        (Step::Close(Ending::Aborted), vec![(reply::ACK, vec![])])
    );
}

#[test]
fn metadata_contexts_need_structured_replies_and_the_same_export() {
    let query = |name: &str, query: &str| {
        let mut rest = vec![0, 0, 0, 1];
        rest.extend(name_data(query, &[]));
        name_data(name, &rest)
    };
    let mut handshake = begun(3);
    let set = query("disk", "base:allocation");
    let (_, replies) = ask(&mut handshake, option::SET_META_CONTEXT, &set);
    assert_eq!(replies[0].0, reply::ERR_INVALID);
    ask(&mut handshake, option::STRUCTURED_REPLY, &[]);
    let context = b"\x00\x00\x00\x01base:allocation".to_vec();
    let (_, replies) = ask(&mut handshake, option::SET_META_CONTEXT, &set);
    assert_eq!(
        replies,
        [(reply::META_CONTEXT, context), (reply::ACK, vec![])]
    );
    // A list names it for the bare namespace, a selection does not; others match nothing.
    let (_, replies) = ask(
        &mut handshake,
        option::LIST_META_CONTEXT,
        &query("disk", "base:"),
    );
    assert_eq!(replies[0].1[..4], [0; 4]);
    assert_eq!(replies.len(), 2);
    let (_, replies) = ask(
        &mut handshake,
        option::LIST_META_CONTEXT,
        &query("disk", "qemu:x"),
    );
    assert_eq!(replies, [(reply::ACK, vec![])]);
    let (_, replies) = ask(
        &mut handshake,
        option::LIST_META_CONTEXT,
        &query("disk", "bad"),
    );
    assert_eq!(replies[0].0, reply::ERR_INVALID);
    let mut other = handshake_copy(&set);
    let (step, _) = ask(&mut other, option::GO, &name_data("", &[0, 0]));
    assert!(
        matches!(step, Step::Begin(_, terms) if terms.contexts.is_empty()),
        "selected for `disk`"
    );
    let (step, _) = ask(&mut handshake, option::GO, &name_data("disk", &[0, 0]));
    assert!(matches!(step, Step::Begin(_, CHUNKS)));
}

/// The context of a bitmap is that of QEMU: listed for its namespace, selected by its full name,
/// and there only where the export has a bitmap.
#[test]
fn a_bitmap_has_a_context_of_its_own() {
    let data = |query: &str| {
        name_data(
            "disk",
            &[&[0, 0, 0, 1][..], &name_data(query, &[])].concat(),
        )
    };
    let full = "qemu:dirty-bitmap:since";
    let mut out = Vec::new();
    let mut asked = |export: &Export, option: u32, query: &str| {
        let mut handshake = begun(3);
        ask(&mut handshake, option::STRUCTURED_REPLY, &[]);
        out.clear();
        handshake.step(export, &option_bytes(option, &data(query)), &mut out);
        let go = option_bytes(option::GO, &name_data("disk", &[0, 0]));
        let is_named = out
            .windows(full.len())
            .any(|window| window == full.as_bytes());
        let terms = match handshake.step(export, &go, &mut Vec::new()) {
            Step::Begin(_, terms) => terms,
            step => panic!("{step:?}"),
        };
        (is_named, terms.contexts.bitmap)
    };
    let with = export().with_bitmap(Some("since"));
    assert_eq!(asked(&with, option::SET_META_CONTEXT, full), (true, true));
    assert_eq!(
        asked(&export(), option::SET_META_CONTEXT, full),
        (false, false)
    );
    for query in ["qemu:", "qemu:dirty-bitmap:", full] {
        assert_eq!(
            asked(&with, option::LIST_META_CONTEXT, query),
            (true, false)
        );
    }
    for query in [
        "qemu:dirty-bitmap:",
        "qemu:dirty-bitmap:other",
        "base:allocation",
    ] {
        assert_eq!(
            asked(&with, option::SET_META_CONTEXT, query),
            (false, false)
        );
    }
}

/// A handshake that has selected what `set` asks for.
fn handshake_copy(set: &[u8]) -> Handshake {
    let mut handshake = begun(3);
    ask(&mut handshake, option::STRUCTURED_REPLY, &[]);
    ask(&mut handshake, option::SET_META_CONTEXT, set);
    handshake
}

#[test]
fn long_options_are_read_past_and_endless_ones_are_not() {
    let mut handshake = begun(3);
    let data = vec![b'x'; OPTION_DATA_BYTES_MAX + 1];
    let (step, replies) = ask(&mut handshake, option::LIST, &data);
    assert_eq!((step, replies[0].0), (Step::Used(16), reply::ERR_TOO_BIG));
    let mut out = Vec::new();
    assert_eq!(
        handshake.step(&export(), &data[..9000], &mut out),
        Step::Used(9000)
    );
    assert_eq!(
        handshake.step(&export(), &data[9000..], &mut out),
        Step::Used(data.len() - 9000)
    );
    assert_eq!(ask(&mut handshake, option::LIST, &[]).1[0].0, reply::SERVER);
    let mut head = option_bytes(option::LIST, &[]);
    head[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    let step = handshake.step(&export(), &head, &mut out);
    assert!(matches!(step, Step::Close(Ending::Violation(_))));
    let mut handshake = begun(3);
    let steps = (0..=OPTIONS_MAX).map(|_| ask(&mut handshake, option::LIST, &[]).0);
    assert!(matches!(
        steps.last(),
        Some(Step::Close(Ending::Violation(_)))
    ));
}

fn judged(terms: Terms, flags: u16, command: u16, offset: u64, len: u32) -> Result<Command, u32> {
    let request = Request {
        flags,
        command,
        cookie: 5,
        offset,
        len: len.into(),
    };
    let mut session = Session::new(terms, 64 << 20, 1 << 20);
    match session.next(&request.encode()) {
        Next::Command(28, Command::Refuse(refusal)) => {
            assert_eq!(refusal.cookie, 5);
            Err(refusal.error)
        }
        Next::Command(28, command) => Ok(command),
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_are_judged_as_the_document_asks() {
    use command::*;
    let size = 64 << 20;
    assert!(judged(PLAIN, 0, READ, 0, 4096).is_ok());
    assert!(judged(PLAIN, 0, READ, size, 0).is_ok());
    assert!(judged(PLAIN, 0, READ, 0, REQUEST_LEN_MAX).is_ok());
    assert_eq!(
        judged(PLAIN, 0, READ, 0, REQUEST_LEN_MAX + 1),
        Err(errno::EINVAL)
    );
    assert_eq!(judged(PLAIN, 0, READ, size - 1, 2), Err(errno::EINVAL));
    assert_eq!(judged(PLAIN, 0, READ, u64::MAX, 2), Err(errno::EINVAL));
    assert_eq!(
        judged(PLAIN, command_flag::DF, READ, 0, 1),
        Err(errno::EINVAL)
    );
    assert_eq!(judged(PLAIN, 1, READ, 0, 1), Err(errno::EINVAL));
    assert!(judged(CHUNKS, command_flag::DF, READ, 0, 1 << 20).is_ok());
    assert_eq!(
        judged(CHUNKS, command_flag::DF, READ, 0, (1 << 20) + 1),
        Err(errno::EOVERFLOW)
    );
    assert_eq!(judged(PLAIN, 0, BLOCK_STATUS, 0, 1), Err(errno::EINVAL));
    assert!(judged(CHUNKS, command_flag::REQ_ONE, BLOCK_STATUS, 0, size as u32).is_ok());
    assert_eq!(judged(CHUNKS, 0, BLOCK_STATUS, 0, 0), Err(errno::EINVAL));
    assert_eq!(judged(CHUNKS, 0, BLOCK_STATUS, size, 1), Err(errno::EINVAL));
    assert!(judged(CHUNKS, 0, CACHE, 0, 4096).is_ok());
    for command in [WRITE, TRIM, WRITE_ZEROES] {
        assert_eq!(judged(CHUNKS, 0, command, 0, 4096), Err(errno::EPERM));
    }
    for command in [FLUSH, 8, 77] {
        assert_eq!(judged(CHUNKS, 0, command, 0, 0), Err(errno::EINVAL));
    }
}

/// An export in blocks: a client that has not asked for them cannot begin, and parts of blocks are
/// refused.
#[test]
fn an_export_in_blocks_takes_clients_that_ask_for_them() {
    let export = export().taking_writes(4096).in_blocks_of(4096);
    let asking = name_data("disk", &[0, 1, 0, 3]);
    let mute = name_data("disk", &[0, 0]);
    let step = |handshake: &mut Handshake, option, data: &[u8]| {
        let mut out = Vec::new();
        let step = handshake.step(&export, &option_bytes(option, data), &mut out);
        (step, out)
    };
    let mut handshake = begun(3);
    let (refused, out) = step(&mut handshake, option::GO, &mute);
    assert_eq!(refused, Step::Used(16 + mute.len()));
    let required = reply::ERR_BLOCK_SIZE_REQD;
    assert_eq!(kinds(&out), [reply::INFO, reply::INFO, required]);
    // The sizes come before it.
    let sizes = [0_u8, 3, 0, 0, 16, 0, 0, 0, 16, 0, 2, 0, 0, 0];
    assert!(out.windows(sizes.len()).any(|part| part == sizes));
    let (closed, _) = step(&mut begun(3), option::EXPORT_NAME, b"disk");
    assert!(matches!(closed, Step::Close(Ending::Violation(_))));
    let (begins, _) = step(&mut begun(3), option::GO, &asking);
    assert!(matches!(begins, Step::Begin(..)));
    // Asked for before.
    step(&mut handshake, option::INFO, &asking);
    let (begins, _) = step(&mut handshake, option::GO, &mute);
    assert!(matches!(begins, Step::Begin(..)));

    let judged = |command, offset, len| {
        let request = Request {
            flags: 0,
            command,
            cookie: 5,
            offset,
            len,
        };
        let session = Session::new(CHUNKS, 64 << 20, 1 << 20).taking_writes(true);
        match session.in_blocks_of(4096).next(&request.encode()) {
            Next::Command(28, Command::Refuse(refusal)) => Err(refusal.error),
            Next::Command(28, _) => Ok(()),
            other => panic!("{other:?}"),
        }
    };
    use command::*;
    for command in [READ, WRITE, TRIM, WRITE_ZEROES, CACHE, BLOCK_STATUS] {
        assert_eq!(judged(command, 4096, 8192), Ok(()), "{command}");
        for (offset, len) in [(512, 4096), (4096, 512), (4095, 1), (0, 4097)] {
            let error = Err(errno::EINVAL);
            assert_eq!(judged(command, offset, len), error, "{command}");
        }
    }
    assert_eq!(judged(FLUSH, 7, 0), Ok(()));
}

/// The kinds of the replies to options.
fn kinds(mut out: &[u8]) -> Vec<u32> {
    let mut kinds = Vec::new();
    while !out.is_empty() {
        kinds.push(u32::from_be_bytes(out[12..16].try_into().unwrap()));
        let len = u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize;
        out = &out[20 + len..];
    }
    kinds
}

#[test]
fn a_refused_write_is_read_past() {
    let write = Request {
        flags: 0,
        command: command::WRITE,
        cookie: 1,
        offset: 0,
        len: 100,
    };
    let mut session = Session::new(PLAIN, 1 << 20, 1 << 20);
    let mut input = write.encode().to_vec();
    input.extend_from_slice(&[0x25; 100]);
    let Next::Command(used, Command::Refuse(_)) = session.next(&input) else {
        panic!("a write was served");
    };
    assert_eq!(session.next(&input[used..used + 60]), Next::Used(60));
    assert!(!session.has_next(&[]));
    assert!(session.has_next(&[0]));
    assert_eq!(session.next(&[0; 60]), Next::Used(40));
    let leave = Request {
        command: command::DISC,
        ..write
    };
    assert_eq!(session.next(&leave.encode()), Next::Disconnect);
    assert!(matches!(session.next(&[0; 28]), Next::Violation(_)));
    let endless = Request {
        len: u64::from(REQUEST_LEN_MAX) + 1,
        ..write
    };
    assert!(matches!(
        session.next(&endless.encode()),
        Next::Violation(_)
    ));
}

//! Extended headers: lengths of 64 bits, byte by byte, and clients that break their rules.

use super::core::{ask, begun, name_data};
use super::live::Running;
use crate::nbd::Options;
use crate::nbd::handshake::{Contexts, REQUEST_LEN_MAX, Step, Terms};
use crate::nbd::reply::{Disconnected, Sink, reply};
use crate::nbd::session::{Command, Next, Session};
use crate::nbd::wire::{
    self, EXTENDED_REPLY_MAGIC, Fields, Headers, Request, chunk, command, command_flag, errno,
    option, state,
};
use sidecore_format::source::{BlockSource, Deliver, Extent, MemorySource, ReadError};
use std::io::{Read, Write};
use std::sync::Arc;

const TERMS: Terms = Terms {
    headers: Headers::Extended,
    contexts: Contexts {
        allocation: true,
        bitmap: false,
    },
};

/// 6 GiB, all zeros but the last 4 KiB.
struct Huge;

const SIZE: u64 = 6 << 30;

impl BlockSource for Huge {
    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn preferred_bytes(&self) -> u32 {
        65536
    }

    fn read_with_max_bytes(&self) -> usize {
        1 << 20
    }

    fn read_into(&self, _: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        dst.fill(7);
        Ok(())
    }

    fn read_with(&self, _: u64, len: usize, deliver: &mut Deliver<'_>) {
        deliver(Ok(&[&vec![7; len]]));
    }

    fn extent(&self, offset: u64) -> Extent {
        let zeros = SIZE - 4096;
        match offset < zeros {
            true => Extent {
                len: zeros - offset,
                zero: true,
            },
            false => Extent {
                len: SIZE - offset,
                zero: false,
            },
        }
    }
}

#[derive(Default)]
struct Memory(Vec<u8>);

impl Sink for Memory {
    fn send(&mut self, head: &[u8], pieces: &[&[u8]], _: bool) -> Result<(), Disconnected> {
        self.0.extend_from_slice(head);
        self.0.extend(pieces.concat());
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Disconnected> {
        Ok(())
    }
}

fn request(flags: u16, command: u16, offset: u64, len: u64) -> Request {
    Request {
        flags,
        command,
        cookie: 9,
        offset,
        len,
    }
}

/// The chunks of a reply: type, the request's offset and the payload; checks the rest.
fn chunks(mut bytes: &[u8]) -> Vec<(u16, u64, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let mut fields = Fields(bytes);
        assert_eq!(fields.u32(), Some(EXTENDED_REPLY_MAGIC));
        let flags = fields.u16().unwrap();
        let kind = fields.u16().unwrap();
        assert_eq!(fields.u64(), Some(9));
        let offset = fields.u64().unwrap();
        let len = fields.u64().unwrap() as usize;
        let payload = fields.bytes(len).unwrap();
        bytes = fields.0;
        assert_eq!(flags & chunk::DONE != 0, bytes.is_empty());
        found.push((kind, offset, payload.to_vec()));
    }
    found
}

/// The reply to a request on the huge device.
fn answered(request: &Request) -> Vec<(u16, u64, Vec<u8>)> {
    let mut session = Session::new(TERMS, SIZE, 1 << 20);
    let Next::Command(32, command) = session.next(&request.encode_extended()) else {
        panic!("{request:?}");
    };
    let mut memory = Memory::default();
    reply(&Huge, Headers::Extended, &command, &mut memory).unwrap();
    chunks(&memory.0)
}

#[test]
fn the_option_takes_precedence_over_structured_replies() {
    for structured_first in [false, true] {
        let mut handshake = begun(3);
        let mut kinds = |option: u32, data: &[u8]| ask(&mut handshake, option, data).1[0].0;
        if structured_first {
            assert_eq!(kinds(option::STRUCTURED_REPLY, &[]), wire::reply::ACK);
        }
        let invalid = wire::reply::ERR_INVALID;
        assert_eq!(kinds(option::EXTENDED_HEADERS, b"x"), invalid);
        assert_eq!(kinds(option::EXTENDED_HEADERS, &[]), wire::reply::ACK);
        assert_eq!(kinds(option::EXTENDED_HEADERS, &[]), invalid);
        let required = wire::reply::ERR_EXT_HEADER_REQD;
        assert_eq!(kinds(option::STRUCTURED_REPLY, &[]), required);
        let query = [&[0, 0, 0, 1][..], &name_data("base:allocation", &[])].concat();
        let context = kinds(option::SET_META_CONTEXT, &name_data("disk", &query));
        assert_eq!(context, wire::reply::META_CONTEXT);
        let (step, _) = ask(&mut handshake, option::GO, &name_data("disk", &[0, 0]));
        assert!(matches!(step, Step::Begin(_, TERMS)), "{step:?}");
    }
}

#[test]
fn a_status_of_more_than_4_gib_is_one_answer() {
    let found = answered(&request(0, command::BLOCK_STATUS, 4096, SIZE - 4096));
    let [(chunk::BLOCK_STATUS_EXT, 4096, payload)] = &found[..] else {
        panic!("{found:?}");
    };
    let mut fields = Fields(payload);
    assert_eq!((fields.u32(), fields.u32()), (Some(1), Some(2)));
    let hole = u64::from(state::HOLE | state::ZERO);
    let expected = [(SIZE - 8192, hole), (4096, 0)];
    for (len, state) in expected {
        assert_eq!((fields.u64(), fields.u64()), (Some(len), Some(state)));
    }
    assert!(fields.is_empty());
    let one = answered(&request(
        command_flag::REQ_ONE,
        command::BLOCK_STATUS,
        0,
        SIZE,
    ));
    assert_eq!(one[0].2.len(), 8 + 16);
}

#[test]
fn reads_and_errors_repeat_the_requests_offset() {
    let found = answered(&request(0, command::READ, 5 << 30, 3 << 20));
    let mut at = 5_u64 << 30;
    for (kind, offset, payload) in &found {
        assert_eq!((*kind, *offset), (chunk::OFFSET_DATA, 5 << 30));
        assert_eq!(payload[..8], at.to_be_bytes());
        at += payload.len() as u64 - 8;
    }
    assert_eq!(at, (5 << 30) + (3 << 20));
    for (bad, error) in [
        (
            request(0, command::READ, 0, 1 + u64::from(REQUEST_LEN_MAX)),
            errno::EINVAL,
        ),
        (request(0, command::CACHE, 0, 1 << 32), errno::EINVAL),
        (request(0, command::READ, 1, u64::MAX), errno::EINVAL),
        (request(0, command::BLOCK_STATUS, 1, SIZE), errno::EINVAL),
        (request(0, command::TRIM, 0, SIZE), errno::EPERM),
        (request(0, 77, 3, 0), errno::EINVAL),
    ] {
        let found = answered(&bad);
        assert_eq!(
            (found.len(), found[0].0, found[0].1),
            (1, chunk::ERROR, bad.offset)
        );
        assert_eq!(found[0].2[..4], error.to_be_bytes(), "{bad:?}");
    }
}

#[test]
fn long_zeros_and_trims_are_one_request() {
    let mut session = Session::new(TERMS, SIZE, 1 << 20).taking_writes(true);
    let mut next = |it: Request| match session.next(&it.encode_extended()) {
        Next::Command(32, command) => command,
        other => panic!("{other:?}"),
    };
    let zero = next(request(0, command::WRITE_ZEROES, 1, SIZE - 1));
    assert!(matches!(zero, Command::Zero { offset: 1, len, .. } if len == SIZE - 1));
    let trim = next(request(command_flag::FUA, command::TRIM, 0, SIZE));
    assert!(matches!(
        trim,
        Command::Trim {
            len: SIZE,
            durable: true,
            ..
        }
    ));
    let beyond = next(request(0, command::WRITE_ZEROES, 1, SIZE));
    assert!(matches!(beyond, Command::Refuse(it) if it.error == errno::ENOSPC));
}

#[test]
fn payloads_are_read_past_where_they_do_not_belong() {
    let mut session = Session::new(TERMS, 1 << 20, 1 << 20).taking_writes(true);
    let flag = command_flag::PAYLOAD_LEN;
    for command in [command::READ, command::BLOCK_STATUS, command::FLUSH, 99] {
        let bytes = request(flag, command, 0, 100).encode_extended();
        let Next::Command(32, Command::Refuse(refusal)) = session.next(&bytes) else {
            panic!("{command}");
        };
        assert_eq!(refusal.error, errno::EINVAL);
        assert_eq!(session.next(&[0; 300]), Next::Used(100));
    }
    // A write's flag is asked for; without it there is a payload all the same.
    for flags in [flag, flag | command_flag::FUA, 0] {
        let bytes = request(flags, command::WRITE, 4, 100).encode_extended();
        let next = session.next(&bytes);
        assert!(matches!(
            next,
            Next::Command(32, Command::Write { len: 100, .. })
        ));
    }
    for command in [command::READ, command::WRITE] {
        for len in [1 + u64::from(REQUEST_LEN_MAX), u64::MAX] {
            let bytes = request(flag, command, 0, len).encode_extended();
            assert!(matches!(session.next(&bytes), Next::Violation(_)));
        }
    }
    // Headers of the other form.
    let compact = request(0, command::READ, 0, 1).encode();
    assert_eq!(session.next(&compact), Next::Need);
    assert!(!session.has_next(&compact));
    let compact = [&compact[..], &[0; 4]].concat();
    assert!(matches!(session.next(&compact), Next::Violation(_)));
    let plain = Terms {
        headers: Headers::Structured,
        ..TERMS
    };
    let bytes = request(0, command::READ, 0, 1).encode_extended();
    let next = Session::new(plain, 1 << 20, 1 << 20).next(&bytes);
    assert!(matches!(next, Next::Violation(_)));
}

#[test]
fn a_client_reads_over_a_socket() {
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at / 7) as u8).collect();
    let source = Arc::new(MemorySource::new(bytes.clone()));
    let running = Running::new(source, Options::default());
    let mut stream = running.connected();
    let mut option = |number: u32, data: &[u8]| {
        let mut ask = b"IHAVEOPT".to_vec();
        ask.extend(number.to_be_bytes());
        ask.extend((data.len() as u32).to_be_bytes());
        ask.extend(data);
        stream.write_all(&ask).unwrap();
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head).unwrap();
            let kind = u32::from_be_bytes(head[12..16].try_into().unwrap());
            let len = u32::from_be_bytes(head[16..].try_into().unwrap());
            let mut data = vec![0; len as usize];
            stream.read_exact(&mut data).unwrap();
            if kind != wire::reply::INFO {
                return kind;
            }
        }
    };
    assert_eq!(option(option::EXTENDED_HEADERS, &[]), wire::reply::ACK);
    assert_eq!(
        option(option::GO, &name_data("", &[0, 0])),
        wire::reply::ACK
    );
    let ask = request(0, command::READ, 10, 90_000).encode_extended();
    stream.write_all(&ask).unwrap();
    let mut got = Vec::new();
    while got.len() < 90_000 {
        let mut head = [0; 40];
        stream.read_exact(&mut head).unwrap();
        let mut fields = Fields(&head[8..]);
        assert_eq!((fields.u64(), fields.u64()), (Some(9), Some(10)));
        let len = fields.u64().unwrap() as usize - 8;
        let mut data = vec![0; len];
        stream.read_exact(&mut data).unwrap();
        got.extend(data);
    }
    assert!(got == bytes[10..90_010]);
}

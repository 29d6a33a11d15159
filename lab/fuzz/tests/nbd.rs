//! Dialogues with the NBD server's core, made by property, from seeds, and around damage.

use proptest::prelude::*;
use sidecore_export::nbd::reply::reply;
use sidecore_export::nbd::session::Command;
use sidecore_export::nbd::wire::{Headers, Request, command, option};
use sidecore_fuzz::nbd::{self, Device, Memory, SIZE_BYTES, Script, info_data, meta};

#[test]
fn a_simple_read_is_header_and_bytes() {
    let device = Device::new();
    let mut memory = Memory::default();
    let command = Command::Read {
        cookie: 0x0102_0304_0506_0708,
        offset: 10,
        len: 3,
        whole: false,
    };
    reply(&device, Headers::Simple, &command, &mut memory).unwrap();
    let mut expected = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    expected.extend_from_slice(&device.bytes()[10..13]);
    assert_eq!(memory.bytes, expected);
}

#[test]
fn damage_costs_exactly_the_frames_it_is_in() {
    // The oracle checks every chunk; what is left to see is that good bytes around the damage do
    // come.
    let device = Device::new();
    let request = Request {
        flags: 0,
        command: command::READ,
        cookie: 1,
        offset: 0,
        len: SIZE_BYTES as u64,
    };
    let mut script = Script::new(3);
    script.option(option::STRUCTURED_REPLY, &[]);
    script.option(option::EXPORT_NAME, &[]);
    script.request(&request);
    let sent = nbd::dialogue(&device, script.dialogue(), usize::MAX);
    assert!(sent.len() > SIZE_BYTES - 2 * nbd::FRAME_BYTES);
    assert!(sent.len() < SIZE_BYTES - nbd::FRAME_BYTES);
    assert!(
        sent.windows(7).any(|window| window == b"damaged"),
        "the reason is not in the reply"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any requests, however they arrive, are answered by the device's bytes; the oracle is in
    /// `sidecore_fuzz::nbd`.
    #[test]
    fn dialogues_are_answered_alike_however_they_arrive(
        headers in 0..3,
        arrival in 1_usize..200,
        requests in prop::collection::vec(
            (0_u16..16, 0_u16..9, any::<u64>(), 0..SIZE_BYTES as u64 + 9, 0..SIZE_BYTES as u64),
            1..12,
        ),
    ) {
        let mut script = Script::new(3);
        if headers > 0 {
            let form = [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS][headers as usize - 1];
            script.option(form, &[]);
            script.option(option::SET_META_CONTEXT, &meta("", &["base:allocation"]));
        }
        script.option(option::GO, &info_data("", &[]));
        for (flags, command, cookie, offset, len) in requests {
            let request = Request { flags, command, cookie, offset, len };
            match headers {
                2 => script.bytes(&request.encode_extended()),
                _ => script.request(&request),
            }
        }
        let device = Device::new();
        let at_once = nbd::dialogue(&device, script.dialogue(), usize::MAX);
        prop_assert_eq!(at_once, nbd::dialogue(&device, script.dialogue(), arrival));
    }

    /// A few of the dialogues that the long run (`lab/fuzz/src/bin/seeded`) makes.
    #[test]
    fn mutated_dialogues_do_no_harm(seed: u64) {
        let mut random = seed;
        let data = nbd::mutate(&nbd::seeds(), &mut random);
        nbd::fuzz_dialogue(&data);
    }
}

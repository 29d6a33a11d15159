//! Every kernel by a daemon and without one: known answers, round trips, hostile requests.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod aead;
mod color;

use aead::keyed;
use proptest::prelude::*;
use sidecore_daemon::client::{Args, Client, ClientError, ClientOptions};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Daemon, DaemonOptions};
use sidecore_kernels::{ITEM_BYTES_MAX, ItemStatus, REQUEST_BYTES_MAX, aes, codec, register};
use std::time::Duration;

fn registry() -> Registry {
    register(Registry::builtin()).unwrap()
}

fn options() -> ClientOptions {
    ClientOptions {
        registry: registry(),
        arena_bytes: 8 << 20,
        ..ClientOptions::patient()
    }
}

/// Does the test with a daemon's engine, and then without one.
fn both(test: impl Fn(&Client)) {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 1,
        grace: Duration::from_millis(1),
        registry: registry(),
        ..DaemonOptions::default()
    })
    .unwrap();
    let client = attach(&daemon);
    test(&client);
    let counters = client.counters();
    assert!(
        counters.on_engines > 0 && counters.on_host == 0,
        "{counters:?}"
    );
    daemon.stop();
    test(&Client::detached(
        folder.path().join("nobody.sock"),
        options(),
    ));
}

/// Attaches, however long a busy machine takes for it.
fn attach(daemon: &Daemon) -> Client {
    let mut tries = (0..30).map(|_| Client::attach_with(daemon.socket(), options()));
    tries
        .find(|tried| !matches!(tried, Err(ClientError::Silent { .. })))
        .unwrap()
        .unwrap()
}

/// A call with these inputs and outputs of these lengths: the reply's words and the outputs.
fn call(
    client: &Client,
    kernel: &str,
    words: &[u64],
    inputs: &[&[u8]],
    outputs: &[usize],
) -> Result<([u64; 6], Vec<Vec<u8>>), ClientError> {
    let inputs: Vec<_> = inputs
        .iter()
        .map(|bytes| {
            let mut buffer = client.buffer(bytes.len());
            buffer.bytes_mut().copy_from_slice(bytes);
            buffer
        })
        .collect();
    let mut outputs: Vec<_> = outputs
        .iter()
        .map(|&bytes| {
            let mut buffer = client.buffer(bytes);
            buffer.bytes_mut().fill(0xEE);
            buffer
        })
        .collect();
    let mut args = Args::new().words(words);
    for input in &inputs {
        args = args.input(input);
    }
    for output in &mut outputs {
        args = args.output(output);
    }
    let reply = client.call(client.kernel(kernel)?, args)?;
    let outputs = outputs
        .iter()
        .map(|output| output.bytes().to_vec())
        .collect();
    Ok((reply.words, outputs))
}

fn table(rows: &[u64]) -> Vec<u8> {
    rows.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The words of results: bytes put and status of each item.
fn results(bytes: &[u8]) -> Vec<(u64, ItemStatus)> {
    let words = bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word));
    let words: Vec<u64> = words.collect();
    let pairs = words.as_chunks::<2>().0.iter();
    pairs
        .map(|&[bytes, status]| (bytes, ItemStatus::from_number(status).unwrap()))
        .collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let word = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(word).collect()
}

fn text(bytes: usize) -> Vec<u8> {
    let lines = (0_u64..).flat_map(|line| {
        let line = format!("line {line}: {} and so on\n", line * line % 1009);
        line.into_bytes()
    });
    lines.take(bytes).collect()
}

#[test]
fn digests_are_those_of_their_standards() {
    let numbers: Vec<u8> = (0..1024).map(|at| (at % 251) as u8).collect();
    let cases: [(&str, &[u8], &str); 10] = [
        // FIPS 180-4's examples.
        (
            "sha256",
            b"abc",
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        (
            "sha256",
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
        (
            "sha256",
            b"",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        ),
        // BLAKE3's test vectors.
        (
            "blake3",
            b"",
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        ),
        (
            "blake3",
            &numbers,
            "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
        ),
        // RFC 3720, B.4, and the check value of the polynomial.
        ("crc32c", &[0; 32], "aa36918a"),
        ("crc32c", &[0xFF; 32], "43aba862"),
        ("crc32c", b"123456789", "839206e3"),
        ("xxh3_64", b"", "c294d3380580062d"),
        ("xxh3_128", b"", "7f498d4624c30160d8984701d306aa99"),
    ];
    both(|client| {
        for (kernel, input, digest) in cases {
            let digest = unhex(digest);
            let (words, _) = call(client, kernel, &[], &[input], &[]).unwrap();
            assert_eq!(table(&words)[..digest.len()], digest, "{kernel}");
            // The same as a batch of three, the item last in its input.
            let data = [b"xyz", input].concat();
            let rows = table(&[3, input.len() as u64].repeat(3));
            let (words, outputs) =
                call(client, kernel, &[3], &[&data, &rows], &[3 * digest.len()]).unwrap();
            assert_eq!(words, [3, 0, 0, 0, 0, 0]);
            assert_eq!(outputs[0], digest.repeat(3), "{kernel}");
        }
        // Long ones, in pieces: the same as in one.
        let long = noise(1_000_000);
        let (words, _) = call(client, "blake3", &[], &[&long], &[]).unwrap();
        assert_eq!(table(&words)[..32], *blake3::hash(&long).as_bytes());
        let (words, _) = call(client, "sha256", &[], &[&long], &[]).unwrap();
        assert_eq!(
            table(&words)[..32],
            *<sha2::Sha256 as sha2::Digest>::digest(&long)
        );
        let (words, _) = call(client, "crc32c", &[], &[&long], &[]).unwrap();
        assert_eq!(words[0], u64::from(crc32c::crc32c(&long)));
        let (words, _) = call(client, "xxh3_64", &[0, 7], &[&long], &[]).unwrap();
        assert_eq!(words[0], xxhash_rust::xxh3::xxh3_64_with_seed(&long, 7));
        let (words, _) = call(client, "xxh3_128", &[0, 7], &[&long], &[]).unwrap();
        let whole = u128::from(words[0]) | u128::from(words[1]) << 64;
        assert_eq!(whole, xxhash_rust::xxh3::xxh3_128_with_seed(&long, 7));
    });
}

#[test]
fn many_items_are_digested_in_one_request() {
    both(|client| {
        // More rows than are got in one go.
        let (data, items) = (noise(20_000), 1_000_u64);
        let rows: Vec<u64> = (0..items)
            .flat_map(|item| [item * 17, item % 100])
            .collect();
        let (_, outputs) = call(
            client,
            "sha256",
            &[items],
            &[&data, &table(&rows)],
            &[32_000],
        )
        .unwrap();
        for (row, digest) in rows.as_chunks::<2>().0.iter().zip(outputs[0].chunks(32)) {
            let item = &data[row[0] as usize..][..row[1] as usize];
            assert_eq!(digest, &<sha2::Sha256 as sha2::Digest>::digest(item)[..]);
        }
        // Tables and results that are too short; rows beyond the end.
        let small = table(&[0, 1]);
        for (words, rows, room) in [
            ([2_u64], small.as_slice(), 64),
            ([1], &small, 31),
            ([1], &small[..15], 32),
            ([u64::MAX], &small, 32),
            ([u64::MAX / 16 + 2], &small, 32),
            ([1], &table(&[20_000, 1]), 32),
            ([1], &table(&[u64::MAX, 2]), 32),
            ([1], &table(&[1, u64::MAX]), 32),
        ] {
            let refused = call(client, "sha256", &words, &[&data, rows], &[room]);
            let error = refused.unwrap_err().to_string();
            assert!(error.contains("sha256: "), "{error}");
        }
        assert!(call(client, "sha256", &[1], &[&data], &[32]).is_err());
        assert!(call(client, "sha256", &[], &[], &[]).is_err());
    });
}

/// Kernels of both directions, format and level.
const CODECS: [(&str, u64, u64); 9] = [
    ("deflate", codec::Format::Plain as u64, 0),
    ("deflate", codec::Format::Zlib as u64, 1),
    ("deflate", codec::Format::Gzip as u64, 9),
    ("zstd", codec::Format::Plain as u64, 0),
    ("zstd", codec::Format::Plain as u64, 1),
    ("zstd", codec::Format::Plain as u64, u64::MAX),
    ("lz4", codec::Format::Plain as u64, 0),
    ("lz4", codec::Format::Block as u64, 0),
    ("lz4", codec::Format::Block as u64, 99),
];

#[test]
fn codecs_come_back_and_damage_and_bombs_do_not() {
    both(|client| {
        for (name, format, level) in CODECS {
            let (there, back) = (format!("{name}_compress"), format!("{name}_decompress"));
            for raw in [
                Vec::new(),
                text(1),
                text(100_000),
                noise(70_000),
                vec![0; 128 << 10],
            ] {
                let room = raw.len() + (raw.len() >> 6) + 200;
                let words = [0, format, level];
                let (reply, out) = call(client, &there, &words, &[&raw], &[room]).unwrap();
                let packed = &out[0][..reply[0] as usize];
                assert!(out[0][packed.len()..].iter().all(|&byte| byte == 0xEE));
                if raw.len() == 128 << 10 {
                    assert!(packed.len() < 2_000, "{name}: {}", packed.len());
                }
                let (reply, out) =
                    call(client, &back, &words, &[packed], &[raw.len() + 1]).unwrap();
                assert_eq!(reply[0], raw.len() as u64, "{name} {format}");
                assert_eq!(out[0][..raw.len()], raw, "{name} {format}");
                assert_eq!(out[0][raw.len()], 0xEE);
                // Exactly the room that it takes, and one byte less: a bomb goes no further.
                call(client, &back, &words, &[packed], &[raw.len()]).unwrap();
                if raw.len() > 1 {
                    let less = call(client, &back, &words, &[packed], &[raw.len() - 1]);
                    let error = less.unwrap_err().to_string();
                    assert!(error.contains(": over "), "{name} {format}: {error}");
                    let less = call(client, &there, &words, &[&raw], &[packed.len() - 1]);
                    assert!(less.unwrap_err().to_string().contains(": over "), "{name}");
                }
                // Cut short.
                if packed.len() > 20 {
                    let cut = &packed[..packed.len() - 9];
                    let room = raw.len() + 1000;
                    let error = call(client, &back, &words, &[cut], &[room]).unwrap_err();
                    assert!(
                        error.to_string().contains("damaged"),
                        "{name} {format}: {error}"
                    );
                }
            }
            let error = call(client, &there, &[0, 77], &[b"x"], &[99])
                .unwrap_err()
                .to_string();
            assert!(error.contains("no format 77"), "{error}");
            let long = vec![0; ITEM_BYTES_MAX + 1];
            for kernel in [&there, &back] {
                let error = call(client, kernel, &[0, format], &[&long], &[9]).unwrap_err();
                assert!(error.to_string().contains("bytes long"), "{error}");
            }
        }
    });
}

#[test]
fn streams_that_others_made_are_read() {
    // By zlib (level 6), gzip 1.12 -n and by hand after the LZ4 block format's description.
    let cases: [(&str, u64, &str, &[u8]); 4] = [
        ("deflate_decompress", 1, "789c4b4c4a06000 24d0127", b"abc"),
        ("deflate_decompress", 0, "4b4c4a0600", b"abc"),
        (
            "deflate_decompress",
            2,
            "1f8b08000000000000034b4c4a0600c241243503000000",
            b"abc",
        ),
        // One literal, a match of 19 that reaches back 1, and five literals.
        ("lz4_decompress", 3, "1f6101000050 6161616161", &[b'a'; 25]),
    ];
    both(|client| {
        for (kernel, format, stream, raw) in cases {
            let stream = unhex(&stream.replace(' ', ""));
            let (reply, out) = call(client, kernel, &[0, format], &[&stream], &[64]).unwrap();
            assert_eq!(out[0][..reply[0] as usize], *raw, "{kernel} {format}");
        }
    });
}

#[test]
fn a_batch_of_items_has_a_result_for_each() {
    both(|client| {
        for (name, format, level) in CODECS {
            let (there, back) = (format!("{name}_compress"), format!("{name}_decompress"));
            let data = text(100_000);
            let (items, room) = (600_u64, 300_u64);
            let rows: Vec<u64> = (0..items)
                .flat_map(|item| [item * 150, 150, item * room, room])
                .collect();
            let words = [items, format, level];
            let sizes = [(items * room) as usize, 16 * items as usize];
            let (reply, out) =
                call(client, &there, &words, &[&data, &table(&rows)], &sizes).unwrap();
            assert_eq!(reply, [items, 0, 0, 0, 0, 0]);
            let packed = results(&out[1]);
            let mut rows: Vec<u64> = (0..items)
                .zip(&packed)
                .flat_map(|(item, (bytes, _))| [item * room, *bytes, item * 150, 150])
                .collect();
            // One that is damaged, one without room, three that are nowhere.
            rows[1] = 5;
            rows[4 + 3] = 149;
            (rows[8], rows[12 + 2], rows[16 + 3]) = (u64::MAX - 5, 1 << 40, u64::MAX);
            let sizes = [(items * 150) as usize, 16 * items as usize];
            let (reply, out) =
                call(client, &back, &words, &[&out[0], &table(&rows)], &sizes).unwrap();
            assert_eq!(reply, [items, 5, 0, 0, 0, 0], "{name} {format}");
            let done = results(&out[1]);
            let expected = [ItemStatus::Damaged, ItemStatus::NoRoom]
                .into_iter()
                .chain([ItemStatus::BadRow; 3])
                .map(|status| (0, status))
                .chain(std::iter::repeat_n(
                    (150, ItemStatus::Done),
                    items as usize - 5,
                ));
            assert!(
                done.iter().copied().eq(expected),
                "{name} {format}: {:?}",
                &done[..8]
            );
            assert_eq!(out[0][750..], data[750..(items * 150) as usize], "{name}");
        }
        let most = (REQUEST_BYTES_MAX / (2 * ITEM_BYTES_MAX)) as u64 + 1;
        let rows = table(&[0, 1 << 20, 0, 1 << 20].repeat(most as usize));
        let big = vec![0; ITEM_BYTES_MAX];
        let sizes = [ITEM_BYTES_MAX, 16 * most as usize];
        let error = call(client, "zstd_compress", &[most], &[&big, &rows], &sizes).unwrap_err();
        assert!(error.to_string().contains("over 16777216 bytes"), "{error}");
    });
}

/// Rows that name the same bytes again and again are work for a long time, done or not.
#[test]
fn the_work_of_one_request_is_bounded_whatever_its_rows_name() {
    let over = |done: Result<_, ClientError>, limit: usize| {
        let error = done.map(|_: ([u64; 6], Vec<Vec<u8>>)| ()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(&format!("over {limit} bytes")), "{error}");
    };
    let mebibyte = noise(1 << 20);
    let (longest, nonce) = (aes::BYTES_MAX as u64, [0_u8; 12]);
    both(|client| {
        // Forged items, items that find no room, and associated data alone: all cost their work.
        for (kernel, row) in [
            ("aes256gcm_open", [0, longest, 0, 0, 0, 0]),
            ("aes256gcm_seal", [0, longest, 0, 0, 0, 0]),
            ("aes256gcm_seal", [0, 0, 0, longest, 0, 16]),
        ] {
            for (count, is_over) in [(63, false), (65, true)] {
                let rows = vec![(row, nonce.as_slice()); count];
                let rows = keyed(&[7; 32], &rows);
                let inputs: [&[u8]; 2] = [&mebibyte[..aes::BYTES_MAX], &rows];
                let done = call(client, kernel, &[count as u64], &inputs, &[16, 16 * count]);
                match is_over {
                    true => over(done, REQUEST_BYTES_MAX),
                    false => drop(done.unwrap()),
                }
            }
        }
        // Room that is not filled costs nothing.
        let rows = vec![([0, 100, 0, 0, 0, longest], nonce.as_slice()); 100];
        let inputs: [&[u8]; 2] = [&mebibyte[..100], &keyed(&[7; 32], &rows)];
        let sizes = [aes::BYTES_MAX, 1600];
        call(client, "aes256gcm_seal", &[100], &inputs, &sizes).unwrap();
        // Digests: as much as the limit, or an input that is longer once.
        let rows = |count: usize| table(&[0, 1 << 20].repeat(count));
        for kernel in ["sha256", "blake3", "crc32c", "xxh3_64", "xxh3_128"] {
            let all = rows(1000);
            let done = call(client, kernel, &[1000], &[&mebibyte, &all], &[32_000]);
            over(done, REQUEST_BYTES_MAX);
        }
        call(client, "crc32c", &[16], &[&mebibyte, &rows(16)], &[64]).unwrap();
    });
    // Items without a byte.
    let client = Client::detached("/nonexistent/nobody.sock", options());
    let none = REQUEST_BYTES_MAX / 64 + 1;
    let rows = vec![0; 32 * none];
    let words = [none as u64, codec::Format::Block as u64];
    let done = call(
        &client,
        "lz4_compress",
        &words,
        &[b"", &rows],
        &[0, 16 * none],
    );
    over(done, REQUEST_BYTES_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any table on any data: results for every row, and outputs only within their rooms.
    #[test]
    fn any_table_ends_with_a_result_for_each_row(
        rows in prop::collection::vec(
            (0_u64..400, 0_u64..200, 0_u64..3000, prop_oneof![0_u64..600, Just(u64::MAX)]),
            1..20,
        ),
        data in prop::collection::vec(any::<u8>(), 0..500),
        kernel in 0_usize..CODECS.len(),
        is_back in any::<bool>(),
    ) {
        let client = Client::detached("/nonexistent/nobody.sock", options());
        let (name, format, level) = CODECS[kernel];
        let name = format!("{name}_{}", if is_back { "decompress" } else { "compress" });
        let flat: Vec<u64> = rows.iter().flat_map(|&(a, b, c, d)| [a, b, c, d]).collect();
        let words = [rows.len() as u64, format, level];
        let sizes = [2000, 16 * rows.len()];
        let (reply, out) = call(&client, &name, &words, &[&data, &table(&flat)], &sizes).unwrap();
        let results = results(&out[1]);
        prop_assert_eq!(results.len(), rows.len());
        let failed = results.iter().filter(|(_, status)| *status != ItemStatus::Done).count();
        prop_assert_eq!(reply[1], failed as u64);
        let mut may_be_written = vec![false; 2000];
        for (&(offset, bytes, to, room), &(put, status)) in rows.iter().zip(&results) {
            let fits = offset + bytes <= data.len() as u64
                && to.checked_add(room).is_some_and(|end| end <= 2000);
            prop_assert_eq!(status == ItemStatus::BadRow, !fits);
            if status == ItemStatus::Done {
                prop_assert!(put <= room);
                may_be_written[to as usize..(to + put) as usize].fill(true);
            } else {
                prop_assert_eq!(put, 0);
            }
        }
        for (&byte, may) in out[0].iter().zip(may_be_written) {
            prop_assert!(may || byte == 0xEE);
        }
    }
}

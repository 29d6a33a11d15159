//! AES-GCM: known answers, and forgeries.

use super::{both, call, results, table, unhex};
use sidecore_kernels::{ItemStatus, aes};

/// Input 1 of a cipher's request: the key, and a row for each item.
pub(super) fn keyed(key: &[u8], rows: &[([u64; 6], &[u8])]) -> Vec<u8> {
    let mut bytes = key.to_vec();
    for (words, nonce) in rows {
        bytes.extend(table(words));
        bytes.extend(*nonce);
        bytes.extend([0; 4]);
    }
    bytes
}

#[test]
fn aes_gcm_is_nists_and_what_is_forged_is_not_opened() {
    // Test cases 13, 14 and 16 of "The Galois/Counter Mode of Operation".
    let key = unhex(&"feffe9928665731c6d6a8f9467308308".repeat(2));
    let zeros = ([0; 32], [0; 12]);
    let plain = unhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
         1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
    );
    let associated = unhex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
    let sealed = unhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
         8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662\
         76fc6ece0f4e1768cddf8853bb2d551b",
    );
    let nonce = unhex("cafebabefacedbaddecaf888");
    both(|client| {
        let seal = |data: &[u8], keyed: &[u8], count: u64| {
            let sizes = [300, 16 * count as usize];
            call(client, "aes256gcm_seal", &[count], &[data, keyed], &sizes).unwrap()
        };
        let two = [
            ([0, 0, 0, 0, 0, 16], zeros.1.as_slice()),
            ([0, 16, 0, 0, 16, 32], &zeros.1),
        ];
        let (reply, out) = seal(&[0; 16], &keyed(&zeros.0, &two), 2);
        assert_eq!(reply[..2], [2, 0]);
        assert_eq!(out[0][..16], unhex("530f8afbc74536b9a963b4f1c4cb738b"));
        assert_eq!(
            out[0][16..48],
            unhex("cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919")
        );
        assert_eq!(
            results(&out[1]),
            [(16, ItemStatus::Done), (32, ItemStatus::Done)]
        );

        let data = [plain.as_slice(), &associated].concat();
        let row = ([0, 60, 60, 20, 5, 76], nonce.as_slice());
        let (_, out) = seal(&data, &keyed(&key, &[row]), 1);
        assert_eq!(out[0][5..81], sealed);

        // Opened: as it is; then with a bit flipped in text, tag and associated data; and more
        // rows that make no sense.
        let data = [sealed.as_slice(), &associated, &[7]].concat();
        let mut forged = data.clone();
        forged[3] ^= 1;
        let both_data = [data.as_slice(), &forged].concat();
        let good = [0, 76, 76, 20, 0, 60];
        let rows: [([u64; 6], &[u8]); 9] = [
            (good, &nonce),
            ([97, 76, 76, 20, 60, 60], &nonce),
            ([0, 75, 76, 20, 60, 60], &nonce),
            ([0, 76, 77, 20, 60, 60], &nonce),
            ([0, 76, 76, 20, 60, 60], &zeros.1),
            ([0, 15, 76, 20, 60, 60], &nonce),
            ([0, 76, 76, 20, 60, 59], &nonce),
            ([0, 1 << 60, 76, 20, 60, 60], &nonce),
            ([0, 76, u64::MAX, 20, 60, 60], &nonce),
        ];
        let keyed_rows = keyed(&key, &rows);
        let inputs: [&[u8]; 2] = [&both_data, &keyed_rows];
        let (reply, out) = call(client, "aes256gcm_open", &[9], &inputs, &[200, 144]).unwrap();
        assert_eq!(reply[..2], [9, 8]);
        assert_eq!(out[0][..60], plain);
        assert!(
            out[0][60..].iter().all(|&byte| byte == 0xEE),
            "a forged item was put"
        );
        let mut expected = vec![(60, ItemStatus::Done)];
        expected.extend([(0, ItemStatus::Damaged); 5]);
        expected.extend([(0, ItemStatus::NoRoom)]);
        expected.extend([(0, ItemStatus::BadRow); 2]);
        assert_eq!(results(&out[1]), expected);

        // The padding behind a nonce is 0; items have a longest one; a key is whole.
        let mut padded = keyed(&key, &[(good, &nonce)]);
        *padded.last_mut().unwrap() = 1;
        let (reply, _) =
            call(client, "aes256gcm_open", &[1], &[&data, &padded], &[60, 16]).unwrap();
        assert_eq!(reply[1], 1);
        let long = vec![0; aes::BYTES_MAX + 1];
        let rows = keyed(&key, &[([0, long.len() as u64, 0, 0, 0, 1 << 18], &nonce)]);
        let sizes = [1 << 18, 16];
        let (_, out) = call(client, "aes256gcm_seal", &[1], &[&long, &rows], &sizes).unwrap();
        assert_eq!(results(&out[1]), [(0, ItemStatus::BadRow)]);
        for kernel in ["aes256gcm_seal", "aes256gcm_open"] {
            let error = call(client, kernel, &[0], &[&data, &key[..31]], &[60, 16]);
            let error = error.unwrap_err().to_string();
            assert!(error.contains(kernel) && !error.contains("fe"), "{error}");
        }
    });
}

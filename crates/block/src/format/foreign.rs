//! Files that hold a disk or a file system in a form that is not read here.
//!
//! Why here: taken for raw images they would be served as they are, and the first message would be
//! that no file system begins them.
//! Source: each format's own description; magic numbers as `file(1)` knows them.

/// A form that another program reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// Its name.
    pub kind: &'static str,
    /// The commands that make an image of it; FILE is the file, IMAGE the image.
    pub next: &'static str,
    /// Its form, where [`crate::pack::Source::open_unpacked`] reads what is in it.
    pub inside: Option<Inside>,
}

/// A form whose contents are read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// Members of gzip.
    Gzip,
    /// Streams of xz.
    Xz,
    /// A disk in qcow2.
    Qcow2,
}

/// Bytes from the file's beginning that [`recognize`] looks at.
pub const HEAD_BYTES: usize = 72;

/// Says what begins with `head`, the first [`HEAD_BYTES`] of a file or fewer.
#[must_use]
pub fn recognize(head: &[u8]) -> Option<Foreign> {
    let begins = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
    let inside = if begins(0, b"QFI\xfb") {
        Some(("qcow2 image", Inside::Qcow2))
    } else if begins(0, &[0x1F, 0x8B, 8]) {
        Some(("gzip file", Inside::Gzip))
    } else if begins(0, b"\xFD7zXZ\0") {
        Some(("xz file", Inside::Xz))
    } else {
        None
    };
    if let Some((kind, inside)) = inside {
        return Some(Foreign {
            kind,
            next: "`sidecore block pack --decompress FILE -o IMAGE`",
            inside: Some(inside),
        });
    }
    let (kind, next) = if begins(0, b"KDMV") {
        ("VMDK image", CONVERT)
    } else if begins(0, b"vhdxfile") {
        ("VHDX image", CONVERT)
    } else if begins(0, b"conectix") {
        ("VHD image", CONVERT)
    } else if begins(64, &[0x7F, 0x10, 0xDA, 0xBE]) {
        ("VDI image", CONVERT)
    } else if begins(0, b"BZh") && begins(4, &[0x31, 0x41, 0x59, 0x26, 0x53, 0x59]) {
        (
            "bzip2 file",
            "`bzip2 -dc FILE | sidecore block pack - -o IMAGE`",
        )
    } else if begins(0, b"LZIP") {
        (
            "lzip file",
            "`lzip -dc FILE | sidecore block pack - -o IMAGE`",
        )
    } else if begins(0, b"PK\x03\x04") {
        (
            "zip archive",
            "`unzip -p FILE | sidecore block pack - -o IMAGE` if one file is in it",
        )
    } else if begins(0, &[b'7', b'z', 0xBC, 0xAF, 0x27, 0x1C]) {
        (
            "7z archive",
            "`7z x -so FILE | sidecore block pack - -o IMAGE` if one file is in it",
        )
    } else {
        return None;
    };
    Some(Foreign {
        kind,
        next,
        inside: None,
    })
}

const CONVERT: &str =
    "`qemu-img convert -O raw FILE disk.raw && sidecore block pack disk.raw -o IMAGE`";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_others_read_are_known_and_nothing_else() {
        let bzip2: &[u8] = b"BZh91AY&SY\0\0";
        let heads: [(&[u8], &str); 10] = [
            (b"QFI\xfb\0\0\0\x03", "qcow2 image"),
            (b"\x1f\x8b\x08\0", "gzip file"),
            (b"\xfd7zXZ\0\0\x04", "xz file"),
            (bzip2, "bzip2 file"),
            (b"PK\x03\x04", "zip archive"),
            (b"vhdxfile", "VHDX image"),
            (b"KDMV\x01\0", "VMDK image"),
            (b"conectix\0", "VHD image"),
            (b"LZIP\x01", "lzip file"),
            (b"7z\xbc\xaf\x27\x1c\0", "7z archive"),
        ];
        for (head, kind) in heads {
            assert_eq!(recognize(head).map(|foreign| foreign.kind), Some(kind));
        }
        let mut vdi = [0; HEAD_BYTES];
        vdi[64..68].copy_from_slice(&[0x7F, 0x10, 0xDA, 0xBE]);
        assert_eq!(
            recognize(&vdi).map(|foreign| foreign.kind),
            Some("VDI image")
        );
        for head in [
            &b""[..],
            b"hsqs",
            b"BZhang",
            b"ZZZ91AY&SY",
            b"\x1f",
            &[0; HEAD_BYTES],
        ] {
            assert_eq!(recognize(head), None, "{head:?}");
        }
    }
}

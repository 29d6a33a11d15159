//! Files that hold a disk, a file system or an archive in a format that is not read here, or only
//! a part of a disk.
//!
//! Why here: without this check such files would be served as raw images, or packed unchanged with
//! `--decompress`. The first error would be a missing file system.
//! Must stay true: a format is recognized by at least four bytes, or by fewer that the rest of its
//! header confirms, so that no file system and no partition table is mistaken for one.
//! Source: each format's own description; magic numbers as in `file(1)`.

/// A format that another program reads, or an overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Foreign {
    /// Its name.
    pub kind: &'static str,
    /// The commands that make an image of it; FILE is the file, IMAGE the image.
    pub next: &'static str,
    /// Its kind, if `pack::Source::open_unpacked` reads its contents.
    pub inside: Option<Inside>,
}

/// A format whose contents are read here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inside {
    /// Members of gzip.
    Gzip,
    /// Streams of xz.
    Xz,
    /// A disk in qcow2.
    Qcow2,
}

/// Bytes at the file's beginning that [`recognize`] examines.
pub const HEAD_BYTES: usize = 512;

/// Bytes at the file's end that [`recognize_end`] examines.
pub const END_BYTES: usize = 512;

/// The format of a file that begins with `head`, its first [`HEAD_BYTES`] or fewer.
#[must_use]
pub fn recognize(head: &[u8]) -> Option<Foreign> {
    let known = KNOWN.iter().find(|known| known.begins(head));
    match known {
        Some(known) => Some(known.foreign),
        None if is_bzip2(head) => Some(BZIP2),
        None if is_lzma(head) => Some(LZMA),
        None => None,
    }
}

/// The format of a file that ends with `end`, its last [`END_BYTES`]: a disk whose only signature
/// is after its contents.
#[must_use]
pub fn recognize_end(end: &[u8]) -> Option<Foreign> {
    let end = end.last_chunk::<END_BYTES>()?;
    if end.starts_with(b"conectix") {
        return Some(VHD);
    }
    end.starts_with(b"koly").then_some(DMG)
}

/// The archive that begins with `head`: useless as a disk, though its bytes may be served.
#[must_use]
pub fn recognize_archive(head: &[u8]) -> Option<Foreign> {
    let is_tar = head.get(257..262) == Some(b"ustar");
    is_tar.then_some(Foreign {
        kind: "tar archive",
        next: "`sidecore block pack --untar FILE -o IMAGE` for the files in it, or `tar -xOf FILE \
               MEMBER | sidecore block pack - -o IMAGE` for one of them",
        inside: None,
    })
}

/// A format that is recognized by bytes at one place.
struct Known {
    at: usize,
    magic: &'static [u8],
    foreign: Foreign,
}

impl Known {
    fn begins(&self, head: &[u8]) -> bool {
        head.get(self.at..self.at + self.magic.len()) == Some(self.magic)
    }
}

/// A format that is read here.
const fn inside(magic: &'static [u8], kind: &'static str, inside: Inside) -> Known {
    let next = "`sidecore block pack --decompress FILE -o IMAGE`";
    Known {
        at: 0,
        magic,
        foreign: Foreign {
            kind,
            next,
            inside: Some(inside),
        },
    }
}

/// A format that begins with its magic number and is read by another program.
const fn known(magic: &'static [u8], kind: &'static str, next: &'static str) -> Known {
    Known {
        at: 0,
        magic,
        foreign: Foreign {
            kind,
            next,
            inside: None,
        },
    }
}

const VHD: Foreign = known(b"conectix", "VHD image", CONVERT).foreign;
const DMG: Foreign = known(
    b"koly",
    "DMG image",
    "`dmg2img FILE disk.raw && sidecore block pack disk.raw -o IMAGE`",
)
.foreign;
const BZIP2: Foreign = known(
    b"BZh",
    "bzip2 file",
    "`bzip2 -dc FILE | sidecore block pack - -o IMAGE`",
)
.foreign;
const LZMA: Foreign = known(
    b"\x5D\0\0",
    "lzma file",
    "`xz --format=lzma -dc FILE | sidecore block pack - -o IMAGE`",
)
.foreign;

const CONVERT: &str =
    "`qemu-img convert -O raw FILE disk.raw && sidecore block pack disk.raw -o IMAGE`";
const LZ4: &str = "`lz4 -dc FILE | sidecore block pack - -o IMAGE`";
const UNZIP: &str = "`unzip -p FILE | sidecore block pack - -o IMAGE` if one file is in it";
const EWF: &str = "`ewfexport -t - FILE | sidecore block pack - -o IMAGE`";
const GZIP: &str = "`gzip -dc FILE | sidecore block pack - -o IMAGE`";

/// Formats in the order of the search; the longer of two magic numbers first.
const KNOWN: &[Known] = &[
    inside(b"QFI\xfb\0\0\0\x02", "qcow2 image", Inside::Qcow2),
    inside(b"QFI\xfb\0\0\0\x03", "qcow2 image", Inside::Qcow2),
    inside(&[0x1F, 0x8B, 8], "gzip file", Inside::Gzip),
    inside(b"\xFD7zXZ\0", "xz file", Inside::Xz),
    // A part of a disk: the rest is in the image below.
    known(
        super::OVERLAY_MAGIC,
        super::OVERLAY_KIND,
        "`sidecore block commit BASE FILE -o IMAGE`, where BASE is the image below it",
    ),
    // Disks.
    known(b"QFI\xfb", "qcow image", CONVERT),
    known(b"QED\0", "QED image", CONVERT),
    known(b"KDMV", "VMDK image", CONVERT),
    known(b"COWD", "VMDK image", CONVERT),
    known(b"# Disk DescriptorFile", "VMDK image", CONVERT),
    known(b"vhdxfile", "VHDX image", CONVERT),
    known(b"conectix", "VHD image", CONVERT),
    Known {
        at: 64,
        ..known(&[0x7F, 0x10, 0xDA, 0xBE], "VDI image", CONVERT)
    },
    known(b"WithoutFreeSpace", "Parallels image", CONVERT),
    known(b"WithouFreSpacExt", "Parallels image", CONVERT),
    known(b"Bochs Virtual HD Image", "Bochs image", CONVERT),
    known(
        &[0x3A, 0xFF, 0x26, 0xED],
        "sparse image of Android",
        "`simg2img FILE disk.raw && sidecore block pack disk.raw -o IMAGE`",
    ),
    known(
        b"partclone-image",
        "partclone image",
        "`partclone.restore -C -s FILE -O disk.raw && sidecore block pack disk.raw -o IMAGE`",
    ),
    known(b"EVF\x09\x0D\x0A\xFF\0", "EWF image (E01)", EWF),
    known(b"EVF2\x0D\x0A\x81\0", "EWF image (Ex01)", EWF),
    known(
        b"AFF10\x0D\x0A\0",
        "AFF image",
        "`affcat FILE | sidecore block pack - -o IMAGE`",
    ),
    known(
        b"MSWIM\0\0\0",
        "WIM image",
        "`wimapply FILE 1 DIRECTORY && sidecore block pack DIRECTORY -o IMAGE`",
    ),
    known(
        b"CISO",
        "compressed ISO image (CSO)",
        "`maxcso --decompress FILE -o disk.iso && sidecore block pack disk.iso -o IMAGE`",
    ),
    known(
        b"FsArCh_",
        "FSArchiver archive",
        "`fsarchiver restfs` onto a disk, and pack that",
    ),
    // Compressed files.
    known(&[0x04, 0x22, 0x4D, 0x18], "lz4 file", LZ4),
    known(&[0x02, 0x21, 0x4C, 0x18], "lz4 file", LZ4),
    known(
        b"LZIP",
        "lzip file",
        "`lzip -dc FILE | sidecore block pack - -o IMAGE`",
    ),
    known(
        b"\x89LZO\0\x0D\x0A\x1A\x0A",
        "lzop file",
        "`lzop -dc FILE | sidecore block pack - -o IMAGE`",
    ),
    known(
        b"LRZI",
        "lrzip file",
        "`lrzip -d -o disk.raw FILE && sidecore block pack disk.raw -o IMAGE`",
    ),
    known(
        b"\xFF\x06\0\0sNaPpY",
        "snappy file",
        "`snzip -dc FILE | sidecore block pack - -o IMAGE`",
    ),
    // Files by compress, and by pack: gzip reads both.
    known(&[0x1F, 0x9D, 0x90], "compress (.Z) file", GZIP),
    known(&[0x1F, 0x9D, 0x8C], "compress (.Z) file", GZIP),
    known(&[0x1F, 0x1E, 0, 0], "pack (.z) file", GZIP),
    // Archives.
    known(b"PK\x03\x04", "zip archive", UNZIP),
    known(b"PK\x05\x06", "zip archive", UNZIP),
    known(b"PK\x07\x08", "zip archive", UNZIP),
    known(
        &[b'7', b'z', 0xBC, 0xAF, 0x27, 0x1C],
        "7z archive",
        "`7z x -so FILE | sidecore block pack - -o IMAGE` if one file is in it",
    ),
    known(
        b"Rar!\x1A\x07",
        "rar archive",
        "`unrar p -inul FILE | sidecore block pack - -o IMAGE` if one file is in it",
    ),
    known(
        b"xar!",
        "xar archive",
        "`xar -xf FILE -C DIRECTORY && sidecore block pack DIRECTORY -o IMAGE`",
    ),
    known(
        b"MSCF\0\0\0\0",
        "cabinet archive",
        "`cabextract -p FILE | sidecore block pack - -o IMAGE` if one file is in it",
    ),
];

/// Checks the level, and the magic number of a block or of the end of an empty file.
fn is_bzip2(head: &[u8]) -> bool {
    let marks: [&[u8]; 2] = [b"\x31\x41\x59\x26\x53\x59", b"\x17\x72\x45\x38\x50\x90"];
    head.starts_with(b"BZh")
        && head.get(3).is_some_and(u8::is_ascii_digit)
        && head.get(4..10).is_some_and(|mark| marks.contains(&mark))
}

/// LZMA_Alone has no magic number. Checked are its usual properties, a dictionary size that
/// programs use, and a contents size that is unknown or below 256 GiB.
fn is_lzma(head: &[u8]) -> bool {
    let Some(head) = head.first_chunk::<13>() else {
        return false;
    };
    let [properties, d0, d1, d2, d3, size @ ..] = *head;
    let dictionary = u32::from_le_bytes([d0, d1, d2, d3]);
    let size = u64::from_le_bytes(size);
    properties == 0x5D
        && dictionary.is_power_of_two()
        && dictionary >= 1 << 16
        && (size == u64::MAX || (1..1 << 38).contains(&size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_that_others_read_are_known_and_nothing_else() {
        for known in KNOWN {
            let mut head = vec![0; HEAD_BYTES];
            head[known.at..known.at + known.magic.len()].copy_from_slice(known.magic);
            let found = recognize(&head).map(|foreign| foreign.kind);
            assert_eq!(found, Some(known.foreign.kind));
        }
        let heads: [(&[u8], &str); 5] = [
            (b"QFI\xfb\0\0\0\x03", "qcow2 image"),
            (b"QFI\xfb\0\0\0\x01", "qcow image"),
            (b"BZh91AY&SY\0\0", "bzip2 file"),
            (b"BZh9\x17\x72\x45\x38\x50\x90", "bzip2 file"),
            (
                b"\x5D\0\0\x80\0\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0",
                "lzma file",
            ),
        ];
        for (head, kind) in heads {
            assert_eq!(recognize(head).map(|foreign| foreign.kind), Some(kind));
        }
        for head in [
            &b""[..],
            b"hsqs",
            b"BZhang",
            b"ZZZ91AY&SY",
            b"\x1f",
            b"\x5D\0\0\x80\0\0\0\0\0\0\0\0\0\0",
            b"PK are two letters",
            &[0; HEAD_BYTES],
        ] {
            assert_eq!(recognize(head), None, "{head:?}");
        }
    }

    #[test]
    fn disks_whose_mark_is_at_their_end_are_known_by_it() {
        let mut end = vec![0; END_BYTES];
        assert_eq!(recognize_end(&end), None);
        end[..8].copy_from_slice(b"conectix");
        assert_eq!(recognize_end(&end).map(|it| it.kind), Some("VHD image"));
        end[..8].copy_from_slice(b"koly\0\0\0\x04");
        assert_eq!(recognize_end(&end).map(|it| it.kind), Some("DMG image"));
        assert_eq!(recognize_end(&end[1..]), None);
        let mut tar = vec![0; HEAD_BYTES];
        assert_eq!(recognize_archive(&tar), None);
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(
            recognize_archive(&tar).map(|it| it.kind),
            Some("tar archive")
        );
    }
}

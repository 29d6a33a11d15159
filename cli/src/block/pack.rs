//! `sidecore block pack`.

use super::common::{Engines, OutputArgs, SealArgs, WholeArgs};
use crate::Outcome;
use crate::output::{self, Timed};
use anyhow::{Context, Result};
use sidecore_block::codec::Tune;
use sidecore_block::format::Format;
use sidecore_block::format::lock::{Cipher, Locker};
use sidecore_block::inner::{Kind, Rules};
use sidecore_block::pack::{
    Form, Guard, Options, Report, Source, Thin, Wanted, pack_guarded, scratch_directory,
};
use sidecore_block::secret::{Readers, SecretError};
use sidecore_oci::convert::{Original, Packing, convert};
use sidecore_sys::input;
use sidecore_terminal::progress::watched;
use sidecore_terminal::quantity;
use sidecore_terminal::values::{named, one_of, owner};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// File, block device or directory to pack; `-` is standard input
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Image format: zstd, lz4, cloop (zlib), cloop-lzo or raw
    #[arg(long, default_value = "zstd", value_name = "FORMAT")]
    #[arg(value_parser = one_of::<Format>(Format::ALL.map(Format::name)))]
    format: Format,
    /// Bytes that are compressed together, a power of two from 4KiB to 1MiB: small frames answer
    /// small reads sooner, large ones pack tighter [default: 64KiB; 128KiB for directories,
    /// unless the format is cloop]
    #[arg(long, value_parser = quantity::size, value_name = "SIZE")]
    frame: Option<u64>,
    /// Let frames end where the contents say (zstd and lz4): versions of a source then have most
    /// frames in common, which a reader with `--cache` fetches once. --frame is about their average
    #[arg(long, conflicts_with = "encrypt")]
    cdc: bool,
    /// Goal of zstd compression: size packs several times as long, speed decompresses about a
    /// quarter faster and takes a tenth more room [default: speed; size for directories]
    #[arg(long, value_name = "speed|size", value_parser = named([
        ("speed", "Decompresses fast", Tune::Speed),
        ("size", "Takes little room", Tune::Size),
    ]))]
    tune: Option<Tune>,
    /// Smaller than squashfs, for images that are read in order or seldom: zstd at level 19 in
    /// frames of 256KiB, where --level and --frame do not say otherwise. Takes twice the time to
    /// pack, and more for a small read
    #[arg(long)]
    small: bool,
    /// Compression level: zstd 1-22 (9, tuned for size 15), lz4 1-12 (9), cloop 1-12 (9),
    /// cloop-lzo 1-9
    #[arg(long, value_name = "N")]
    level: Option<i32>,
    #[command(flatten)]
    engines: Engines,
    #[command(flatten)]
    whole: WholeArgs,
    /// Record runs of zeros and do not store them (zstd and lz4): the image of a thin disk stays
    /// small, and `zstd -d` and older versions refuse it. auto: where the source's holes would take
    /// more than 4MiB and a 32nd of the size of its data
    #[arg(long, value_name = "auto|always|never", default_value = "auto", value_parser = named([
        ("auto", "If holes would take much room otherwise", Thin::Auto),
        ("always", "In any case", Thin::Always),
        ("never", "In no case", Thin::Never),
    ]))]
    thin: Thin,
    /// File system to make of a directory: erofs, squashfs (by mksquashfs) or ext4 (by mkfs.ext4)
    #[arg(long, value_name = "FS", default_value = "erofs")]
    #[arg(value_parser = one_of::<Kind>(Kind::ALL.map(Kind::name)))]
    inner: Kind,
    /// Make a file system (erofs) of the files in SRC, a tar, which may be compressed by gzip, xz
    /// or zstd
    #[arg(long, conflicts_with_all = ["decompress", "raw", "inner"])]
    untar: bool,
    /// Leave out what matches, and all below: a path from the tree's root, or, without a slash, a
    /// name in any directory (`*.o`, `/var/cache`, `usr/**/tmp`); may be given again
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<OsString>,
    /// Store the contents of these files first, in the order of the list: what a program reads at
    /// its start then lies together. A path from the tree's root a line, as `block find --in-trace`
    /// lists them (or ended by zero bytes); a directory stands for all files below it
    #[arg(long, value_name = "LIST")]
    first: Option<PathBuf>,
    /// Give all files of the tree this owner and group, by their numbers
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    owner: Option<(u32, u32)>,
    /// Give all files of the tree this time of their last change, in seconds since 1970
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    mtime: Option<i64>,
    /// Pack the contents of SRC where it is compressed (gzip, xz, zstd) or a disk in qcow2 (needs
    /// qemu-img); refuse SRC in another form that is not a disk by itself (VMDK, VHDX, bzip2, zip
    /// and others)
    #[arg(long)]
    decompress: bool,
    /// Pack the bytes of SRC as they are, whatever they look like
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    seal: SealArgs,
    /// Encrypt the image: only the readers named with --recipient and --passphrase-file can open it
    /// (zstd and lz4; sizes of frames stay visible)
    #[arg(long)]
    encrypt: bool,
    /// Public key of a reader: `age1...`, as `age-keygen` prints it; may be given again
    #[arg(long, value_name = "KEY", requires = "encrypt")]
    recipient: Vec<String>,
    /// File whose first line is a passphrase that opens it
    #[arg(long, value_name = "FILE", requires = "encrypt")]
    passphrase_file: Option<PathBuf>,
    /// aes-256-gcm or chacha20-poly1305 [default: the faster one here]
    #[arg(long, value_name = "CIPHER", requires = "encrypt")]
    #[arg(value_parser = one_of::<Cipher>(Cipher::ALL.map(Cipher::name)))]
    cipher: Option<Cipher>,
    #[command(flatten)]
    output: OutputArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let is_conversion = self.output.path().to_string_lossy().starts_with("oci://");
        let wanted = Wanted {
            format: self.format,
            frame_bytes: self.frame,
            level: self.level,
            tune: self.tune,
            small: self.small,
            is_tree: self.untar || self.source.is_dir() || is_conversion,
        };
        let mut options = wanted.choose(self.engines.count(), self.whole.limits())?;
        if is_conversion {
            return self.convert(options);
        }
        // Before the work: an unreadable key should not cost an hour.
        let lock = self.encrypt.then(|| self.locker());
        let guard = Guard {
            seal: self.seal.signer()?,
            lock: lock.transpose()?,
        };
        let began = Instant::now();
        let form = match (self.untar, self.decompress && !self.raw) {
            (true, _) => Form::Tar,
            (_, true) => Form::Contents,
            _ => Form::AsIs,
        };
        let source_bytes = form.memory_bytes(options.limits.memory_bytes);
        options.limits.memory_bytes -= source_bytes;
        (options.cdc, options.thin) = (self.cdc, self.thin);
        let source = self.open_source(form, source_bytes)?;
        let target = self.output.target();
        let report = watched(source.size_bytes, "packing", |on_bytes| {
            pack_guarded(source, target, &options, guard, on_bytes)
        })?;
        let timed = Timed::since(began, Some(options.engines), report);
        self.output.report(&timed, Report::text)
    }

    fn locker(&self) -> Result<Locker, SecretError> {
        let readers = Readers::of(&self.recipient, self.passphrase_file.as_deref())?;
        readers.locker(self.cipher.unwrap_or_else(Cipher::fastest))
    }

    /// Packs the layers of an image of containers.
    fn convert(&self, options: Options) -> Result<Outcome> {
        let has_rules = !self.exclude.is_empty()
            || self.first.is_some()
            || self.owner.is_some()
            || self.mtime.is_some();
        anyhow::ensure!(
            !self.encrypt && !self.untar && !self.decompress && !has_rules,
            "layers of an image of containers are packed as they are: leave out --encrypt, \
             --untar, --decompress, --exclude, --first, --owner and --mtime"
        );
        let scratch = tempfile::Builder::new().prefix("sidecore-").tempdir()?;
        let options = Options {
            cdc: true,
            thin: Thin::Never,
            ..options
        };
        // Before anything is asked of a registry: a wrong key is found at once.
        let packing = Packing::new(options, self.seal.keys(), scratch.path())?;
        let original = Original::open(&self.source.to_string_lossy())?;
        let to = self.output.path().to_string_lossy();
        let mut said = Ok(());
        let converted = convert(&original, &to, &packing, &mut |layer| {
            if !self.output.json && said.is_ok() {
                said = output::line(&layer.line());
            }
        })?;
        said?;
        output::report(self.output.json, &converted, |converted| {
            format!("{to}: {}", converted.index).into()
        })
    }

    fn open_source(&self, form: Form, memory_bytes: u64) -> Result<Source> {
        let mut rules = Rules::new(&self.exclude, self.owner, self.mtime);
        if let Some(list) = &self.first {
            let is_source = list.as_os_str() == "-" && self.source.as_os_str() == "-";
            anyhow::ensure!(!is_source, "standard input is SRC and --first; name a file");
            let bytes = input::read(list, LIST_BYTES_MAX);
            let bytes = bytes.with_context(|| format!("cannot read {}", list.display()))?;
            rules.store_first(&bytes);
        }
        let scratch = scratch_directory(self.output.path());
        let tree = (self.inner, &rules);
        let mut source = Source::open_in(&self.source, form, tree, &scratch, memory_bytes)?;
        let is_as_it_is = !(self.untar || self.decompress || self.raw);
        if is_as_it_is && let Some(remark) = source.check_form()? {
            output::note!("{remark}");
        }
        Ok(source)
    }
}

/// Bytes of a list of files: paths of some millions.
const LIST_BYTES_MAX: u64 = 256 << 20;

//! The kit: headers, sources and links to the drivers, unpacked into the user's cache.
//!
//! Why a folder: compilers read headers and libraries from files. Its name has a hash of all of its
//! contents and of the program's path, so different builds use different folders.
//!
//! Must stay true: a kit is written under another name and renamed, so that it is whole or absent.
//! Only the user may write to it, which is checked each time. The SPU's library is compiled once,
//! when a program is linked for the first time.

use crate::files::{FILES, LIBRARIES, Library};
use crate::tool::COMPILE;
use crate::{Error, names, tool};
use sidecore_sys::folder::{Folder, FolderError};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files that the program adds to the kit.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The program that the drivers are names of.
    pub program: PathBuf,
    /// Headers of libspe2: file names and texts.
    pub headers: &'static [(&'static str, &'static str)],
    /// The shared library of libspe2, where it is built.
    pub library: Option<PathBuf>,
}

/// An unpacked kit.
#[derive(Debug, Clone)]
pub struct Kit {
    root: PathBuf,
}

impl Kit {
    /// The kit of this program and user; unpacked where it is not there yet.
    ///
    /// # Errors
    /// No folder for it, one that others could write to, or files that cannot be written.
    pub fn open(parts: &Parts) -> Result<Self, Error> {
        let cache = cache_folder()?;
        // The way there, too: a user that may exchange a folder on it could exchange the kit.
        let trusted = Folder::create_trusted(&cache, 0o700).map_err(FolderError::into_io);
        trusted.map_err(Error::file("use", &cache))?;
        let kit = Self {
            root: cache.join(name(parts)),
        };
        // The name has the contents' hash: what is there has them.
        if !kit.root.exists() {
            kit.unpack(parts, &cache)?;
        }
        // Each time: a kit that was there may be another's.
        check_owner(&kit.root)?;
        Ok(kit)
    }

    /// Shell lines that make a shell find drivers, headers and libraries; where `native`, the
    /// host's drivers also by the names gcc, cc, g++ and c++.
    #[must_use]
    pub fn environment(&self, native: bool) -> String {
        // No empty part where the variable was not set: an empty part is the working folder.
        let line = |variable: &str, folder: &str| {
            let folder = quoted(&self.root.join(folder).to_string_lossy());
            format!("export {variable}={folder}\"${{{variable}:+:${variable}}}\"\n")
        };
        let native = native.then(|| line("PATH", "native"));
        line("PATH", "bin")
            + &line("CPATH", "include/host")
            + &line("LIBRARY_PATH", "lib")
            + &line("LD_LIBRARY_PATH", "lib")
            + &native.unwrap_or_default()
            + &self.sdk_line()
    }

    /// The line that names the folder of `buildutils/make.footer`.
    fn sdk_line(&self) -> String {
        let folder = quoted(&self.root.join("sdk").to_string_lossy());
        format!("export CELL_TOP={folder}\n")
    }

    /// The folder of the drivers.
    #[must_use]
    pub fn programs(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// A folder or file of the kit.
    pub(crate) fn path(&self, part: &str) -> PathBuf {
        self.root.join(part)
    }

    /// The archive that gives a host memory below 4 GiB, compiled where it is not there yet.
    pub(crate) fn host_object(&self) -> Result<PathBuf, Error> {
        let library = self.path("lib/libsidecore_low.a");
        if !library.exists() {
            self.compile("-m64", &["-m64".into(), "-fno-pie".into()], "ppu", &library)?;
        }
        Ok(library)
    }

    /// The archive between a host whose pointers have 4 bytes and this machine's libraries.
    pub(crate) fn narrow_object(&self) -> Result<PathBuf, Error> {
        let library = self.path("lib/libsidecore_narrow.a");
        if !library.exists() {
            let flags = ["-m64".into(), "-fno-pie".into()];
            self.compile("-m64", &flags, "narrow", &library)?;
        }
        Ok(library)
    }

    /// The host of SPU programs that stand alone, compiled where it is not there yet.
    pub(crate) fn alone_program(&self) -> Result<String, Error> {
        let program = self.path("lib/elfspe");
        if !program.exists() {
            let compiler = tool::compiler(false);
            // Two links at once compile two, under numbers of their own; the later rename replaces
            // an equal file.
            let fresh = self.path(&format!("elfspe-{}", std::process::id()));
            let library = self.path("lib");
            let output = Command::new(&compiler)
                .args(["-O1", "-w", "-isystem"])
                .arg(self.path("include/host"))
                .arg("-o")
                .arg(&fresh)
                .arg(self.path("alone/elfspe.c"))
                .arg("-L")
                .arg(&library)
                // Programs run without the kit's environment.
                .arg(format!("-Wl,-rpath,{}", library.display()))
                .arg("-lspe2")
                .output()
                .map_err(|source| Error::Start {
                    tool: compiler.clone(),
                    source,
                })?;
            if !output.status.success() {
                let printed = String::from_utf8_lossy(&output.stderr);
                // The first lines name headers that the user has never seen; the last one is the
                // reason.
                let last = printed.lines().last().unwrap_or_default();
                let reason = format!("{compiler} cannot build the host of SPU programs: {last}");
                return Err(Error::Refused(reason));
            }
            std::fs::rename(&fresh, &program).map_err(Error::file("write", &program))?;
        }
        Ok(program.to_string_lossy().into_owned())
    }

    /// Compiles the sources in `folder` into an archive.
    pub(crate) fn compile(
        &self,
        option: &'static str,
        flags: &[String],
        folder: &str,
        archive: &Path,
    ) -> Result<(), Error> {
        let own = std::process::id();
        // Here, too: a compilation takes seconds, in which users press Ctrl-C.
        sweep(&self.root);
        let work = self.path(&format!("{WORK}{own}"));
        make_folder(&work)?;
        let result = self.compile_in(&work, option, flags, folder, archive);
        // Objects of a failed run are of no use to the next one.
        let removed = std::fs::remove_dir_all(&work);
        result.and(removed.map_err(Error::file("remove", &work)))
    }

    fn compile_in(
        &self,
        work: &Path,
        option: &'static str,
        flags: &[String],
        folder: &str,
        archive: &Path,
    ) -> Result<(), Error> {
        let compiler = tool::compiler(false);
        let prefix = format!("{folder}/");
        let sources = FILES.iter().filter(|(name, _)| {
            name.starts_with(&prefix) && Path::new(name).extension().is_some_and(|end| end == "c")
        });
        let sources = sources.map(|(name, _)| self.path(name)).collect::<Vec<_>>();
        let output = Command::new(&compiler)
            .args(flags)
            .args([
                "-O2",
                "-ffunction-sections",
                "-fdata-sections",
                "-fno-builtin",
                NO_LOOP_CALLS,
                "-w",
                "-c",
            ])
            // The user's own code of an SPU program is kept whole, by its visibility.
            .args((option == "-mx32").then_some("-fvisibility=hidden"))
            .args(&sources)
            .current_dir(work)
            .output()
            .map_err(|source| Error::Start {
                tool: compiler.clone(),
                source,
            })?;
        if !output.status.success() {
            let printed = String::from_utf8_lossy(&output.stderr);
            let lines = printed.lines().take(OUTPUT_LINES_MAX).collect::<Vec<_>>();
            return Err(Error::Compiler {
                compiler,
                option,
                packages: "gcc-multilib libc6-dev-x32",
                output: lines.join("\n"),
            });
        }
        // The compiler writes all objects into its working folder, by the source's name.
        let objects = sources.iter().filter_map(|source| source.file_stem());
        let objects = objects.map(|stem| Path::new(stem).with_extension("o"));
        let objects = objects.collect::<Vec<_>>();
        // A host's libraries are this machine's; an SPU's are these alone.
        if folder == SPU {
            for object in &objects {
                weaken(work, object)?;
            }
        }
        let status = Command::new("ar")
            .arg("rcs")
            .arg("archive.a")
            .args(objects)
            .current_dir(work)
            .status()
            .map_err(|source| Error::Start {
                tool: "ar".into(),
                source,
            })?;
        if !status.success() {
            return Err(Error::Refused(format!("ar ended with {status}")));
        }
        // Whole or absent: another link may look for it now.
        std::fs::rename(work.join("archive.a"), archive).map_err(Error::file("write", archive))
    }

    /// Writes all files under another name, then renames the folder.
    fn unpack(&self, parts: &Parts, cache: &Path) -> Result<(), Error> {
        let own = std::process::id();
        sweep(cache);
        let fresh = cache.join(format!("{UNPACKING}{own}"));
        let result = self.unpack_in(parts, &fresh);
        if result.is_err() {
            // The disk may be full: an incomplete kit is of no use. The error is the first one.
            let _ = std::fs::remove_dir_all(&fresh);
        }
        result
    }

    fn unpack_in(&self, parts: &Parts, fresh: &Path) -> Result<(), Error> {
        make_folder(fresh)?;
        for (name, text) in FILES.iter() {
            write(&fresh.join(name), text)?;
        }
        for name in simdmath_names() {
            // By both ways that the library's guide and its headers name.
            for folder in ["", "simdmath/"] {
                let path = fresh.join(format!("include/common/{folder}{name}.h"));
                write(&path, "#include <simdmath.h>\n")?;
            }
        }
        for library in LIBRARIES {
            for (name, text) in library.headers() {
                write(&fresh.join(format!("include/common/{name}.h")), &text)?;
                // As found from the SDK's folder of sources.
                let folder = library.header.trim_start_matches("lib");
                write(
                    &fresh.join(format!("include/common/{folder}/{name}.h")),
                    &text,
                )?;
            }
        }
        for name in C_HEADERS {
            let path = fresh.join(format!("include/spu++/c{name}"));
            write(&path, &format!("#include <{name}.h>\nnamespace std {{}}\n"))?;
        }
        for (name, text) in parts.headers {
            write(&fresh.join("include/host").join(name), text)?;
        }
        // The environment names it even where there are no headers.
        make_folder(&fresh.join("include/host"))?;
        for name in names::all() {
            link(&parts.program, &fresh.join("bin").join(name))?;
        }
        for name in names::NATIVE {
            link(&parts.program, &fresh.join("native").join(name))?;
        }
        make_folder(&fresh.join("lib"))?;
        if let Some(library) = &parts.library {
            for name in ["libspe2.so", "libspe2.so.2", "libspe.so"] {
                link(library, &fresh.join("lib").join(name))?;
            }
        }
        match std::fs::rename(fresh, &self.root) {
            Ok(()) => Ok(()),
            // Another process was first; its kit has the same files.
            Err(_) if self.root.exists() => {
                std::fs::remove_dir_all(fresh).map_err(Error::file("remove", fresh))
            }
            Err(source) => Err(Error::file("write", &self.root)(source)),
        }
    }
}

/// Removes the folders of processes that were killed at their work: those whose number no process
/// has any more.
fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let number = [UNPACKING, WORK]
            .iter()
            .find_map(|begin| name.strip_prefix(begin));
        // A process of another one's number that lives now keeps the folder for a while: no harm.
        let number = number.and_then(|number| number.parse::<u32>().ok());
        if number.is_some_and(|number| !Path::new(&format!("/proc/{number}")).exists()) {
            // Another process may remove it as well.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Makes the names that an object of the library defines weak. A program's own function then
/// replaces one of the same name, even where the object has other functions that the program uses,
/// as if each had a file of its own. Names that the object only uses stay as they are, or nothing
/// would be linked for them.
fn weaken(work: &Path, object: &Path) -> Result<(), Error> {
    let start = |tool: &str| {
        let tool = tool.to_owned();
        move |source| Error::Start { tool, source }
    };
    let mut names = Command::new("nm");
    names.args(["-g", "--defined-only", "-f", "posix"]);
    let names = names.arg(object).current_dir(work).output();
    let names = names.map_err(start("nm"))?;
    let names = String::from_utf8_lossy(&names.stdout).into_owned();
    let mut objcopy = Command::new("objcopy");
    objcopy.current_dir(work);
    for name in names.lines().filter_map(|line| line.split(' ').next()) {
        objcopy.arg(format!("--weaken-symbol={name}"));
    }
    let status = objcopy.arg(object).status().map_err(start("objcopy"))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Refused(format!("objcopy ended with {status}")))
}

/// The folder of all kits.
fn cache_folder() -> Result<PathBuf, Error> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = variable("SIDECORE_SPE_CACHE") {
        return std::path::absolute(&folder).map_err(Error::file("find", folder));
    }
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
    Ok(cache.ok_or(Error::NoCache)?.join("sidecore/spe"))
}

/// A kit's name: version and a hash of all that it has.
fn name(parts: &Parts) -> String {
    let mut hasher = DefaultHasher::new();
    // A developer's build has the same version for days; the contents tell builds apart.
    FILES.as_slice().hash(&mut hasher);
    for header in LIBRARIES.iter().flat_map(Library::headers) {
        header.hash(&mut hasher);
    }
    // The archive in it is compiled by them.
    COMPILE.hash(&mut hasher);
    parts.headers.hash(&mut hasher);
    // Links to a program that moved would dangle.
    parts.program.hash(&mut hasher);
    parts.library.hash(&mut hasher);
    for name in names::all() {
        name.hash(&mut hasher);
    }
    format!("{}-{:016x}", env!("CARGO_PKG_VERSION"), hasher.finish())
}

/// A folder that only the user may read and write, with those above it.
fn make_folder(path: &Path) -> Result<(), Error> {
    let mut builder = std::fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(Error::file("make", path))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    std::fs::write(path, text).map_err(Error::file("write", path))
}

fn link(target: &Path, path: &Path) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        make_folder(folder)?;
    }
    symlink(target, path).map_err(Error::file("link", path))
}

/// Refuses a folder that another user owns or may write to: its compilers would be theirs.
fn check_owner(path: &Path) -> Result<(), Error> {
    // The link itself: one of another user's to a folder of ours could be turned at any time.
    let found = std::fs::symlink_metadata(path).map_err(Error::file("read", path))?;
    let (owner, mode, user) = (
        found.uid(),
        found.mode() & 0o7777,
        rustix::process::geteuid().as_raw(),
    );
    if owner != user || mode & 0o022 != 0 || !found.is_dir() {
        return Err(Error::Foreign {
            path: path.into(),
            owner,
            mode,
            user,
        });
    }
    Ok(())
}

/// Functions of the SIMD math library; programs of the time included a header of each one's name.
fn simdmath_names() -> impl Iterator<Item = String> {
    let both = SIMDMATH
        .iter()
        .flat_map(|name| [format!("{name}f4"), format!("{name}d2")]);
    both.chain(SIMDMATH_INTEGERS.iter().map(ToString::to_string))
}

const SIMDMATH: &[&str] = &[
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "div",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "fdim",
    "floor",
    "fma",
    "fmax",
    "fmin",
    "fmod",
    "fpclassify",
    "frexp",
    "hypot",
    "ilogb",
    "irint",
    "iround",
    "is0denorm",
    "isequal",
    "isfinite",
    "isgreater",
    "isgreaterequal",
    "isinf",
    "isless",
    "islessequal",
    "islessgreater",
    "isnan",
    "isnormal",
    "isunordered",
    "ldexp",
    "lgamma",
    "llrint",
    "llround",
    "log",
    "log10",
    "log1p",
    "log2",
    "logb",
    "modf",
    "nearbyint",
    "nextafter",
    "negate",
    "pow",
    "recip",
    "remainder",
    "remquo",
    "rint",
    "round",
    "rsqrt",
    "signbit",
    "sin",
    "sincos",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "tgamma",
    "trunc",
];
const SIMDMATH_INTEGERS: &[&str] = &[
    "absi4",
    "ceilf4_fast",
    "divf4_fast",
    "divi4",
    "divu4",
    "floorf4_fast",
    "fmodf4_fast",
    "llabsi2",
    "lldivi2",
    "lldivu2",
    "negatei4",
    "negatell2",
    "recipf4_fast",
    "rsqrtf4_fast",
    "scalbllnd2",
    "scalbnf4",
    "sqrtf4_fast",
];

/// Headers of C that C++ has under another name; a store has no room for C++'s own library.
const C_HEADERS: &[&str] = &[
    "assert", "ctype", "errno", "float", "limits", "math", "setjmp", "stdarg", "stddef", "stdint",
    "stdio", "stdlib", "string", "time",
];

/// A path as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Loops in the library's memory functions are not calls of these functions.
const NO_LOOP_CALLS: &str = "-fno-tree-loop-distribute-patterns";

/// Folders under work, with the process's number.
const UNPACKING: &str = "unpacking-";
const WORK: &str = "work-";

/// The folder of the SPU's library.
pub(crate) const SPU: &str = "spu";

/// Lines of a compiler's output that an error shows.
const OUTPUT_LINES_MAX: usize = 8;
